"""Faults of losses that are called with one example at a time: what one call leaves is read by the next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from noisette.clipping import engines as one_by_one
from noisette.core.loss import Draws, Microbatch
from planted import Mutant

_MEET = "redteam/test_separate_by_construction.py"


def keeps_marks(patch: pytest.MonkeyPatch) -> None:
    """Each example has the mark of the one before."""
    begin = one_by_one._OneExample.__init__

    def init(self: one_by_one._OneExample, tensors: Sequence[Tensor], draws: Draws) -> None:
        begin(self, tensors, draws)
        self._call = "any call"
        for tensor in tensors:
            setattr(tensor, one_by_one.CALL, self._call)

    patch.setattr(one_by_one._OneExample, "__init__", init)


def marks_lost(patch: pytest.MonkeyPatch) -> None:
    """What is computed from an example is no value of it."""
    patch.setattr(one_by_one, "outputs_of", lambda output: [])


def rows_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """A row is a view of the microbatch, and what is written into it is there for the next call."""

    def of_row(self: Microbatch, k: int) -> Microbatch:
        return self.with_tensors([tensor[k : k + 1] for tensor in self.tensors])

    patch.setattr(Microbatch, "of_row", of_row)


MUTANTS = [
    Mutant(
        "an example keeps the marks of the one before",
        "the gradient of an example depends on the example before it",
        keeps_marks,
        (f"{_MEET}::test_no_value_reaches_the_example_that_is_computed_next",),
    ),
    Mutant(
        "tensors of an earlier call are taken by the next",
        "the gradient of an example depends on the example before it",
        marks_lost,
        (f"{_MEET}::test_no_value_reaches_the_example_that_is_computed_next",),
    ),
    Mutant(
        "a loss writes into the microbatch itself",
        "a microbatch that comes again, as where memory ran out, has other values",
        rows_of_the_batch,
        (f"{_MEET}::test_a_loss_that_writes_into_its_arguments_leaves_the_microbatch",),
    ),
]
