"""Faults of losses that are called with one example at a time: what one call leaves is read by the next."""

from __future__ import annotations

import pytest

from noisette.clipping import one_by_one
from noisette.gradients import single_examples
from planted import Mutant

_TESTS = "clipping/test_one_by_one.py"
_LEFT = f"{_TESTS}::test_what_an_example_leaves_for_the_next_is_refused"


def forgets_calls(patch: pytest.MonkeyPatch) -> None:
    """Each tensor counts as one of the present call, or of the model."""
    patch.setattr(single_examples._SingleRecorder, "_is_of_example", lambda self, tensor: False)


def looks_at_nothing(patch: pytest.MonkeyPatch) -> None:
    """What Python keeps is not compared."""
    patch.setattr(one_by_one._Left, "_now", lambda self: None)


def keeps_the_model(patch: pytest.MonkeyPatch) -> None:
    """A run does not put the model back after each example."""
    patch.setattr(one_by_one._Left, "check", lambda self: None)


MUTANTS = [
    Mutant(
        "tensors of an earlier call are taken by the next",
        "the gradient of an example depends on the example before it",
        forgets_calls,
        (_LEFT,),
    ),
    Mutant(
        "what Python keeps from one example to the next is not compared",
        "a number of one record, kept in a closure, scales the gradients of the next",
        looks_at_nothing,
        (_LEFT,),
    ),
    Mutant(
        "the model is not put back after each example",
        "an attribute of the model carries values from one record to the next",
        keeps_the_model,
        (f"{_TESTS}::test_a_run_puts_the_model_back_after_each_example",),
    ),
]
