"""Faults of engines that compute twice: the gradients that are added up are not those whose norms were taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from noisette.gradients.surroundings import Surroundings

from noisette.clipping.engines import two_passes
from noisette.rules import recomputed_blocks
from planted import Mutant

_TWO_PASSES = "clipping/engines/test_repeated_passes.py"
_BLOCKS = "rules/test_recomputed_blocks.py"


def draws_anew(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def with_gradients(self: Surroundings) -> Iterator[None]:
        with torch.enable_grad():
            yield

    patch.setattr(Surroundings, "restored", with_gradients)


MUTANTS = [
    Mutant(
        "the second pass is not held to the norms of the first",
        "a model that computes something else the second time moves the sum by any number of bounds",
        lambda patch: patch.setattr(two_passes, "_shortening", lambda before, now: torch.ones_like(now)),
        (f"{_TWO_PASSES}::test_the_bound_holds_where_the_second_pass_differs[5.0]",),
    ),
    Mutant(
        "gradients that are finite in the first pass alone are added up",
        "one record makes the sum infinite",
        lambda patch: patch.setattr(two_passes, "_check", lambda norms, holds, message: None),
        (f"{_TWO_PASSES}::test_a_gradient_that_is_finite_once_alone_is_refused",),
        seen_as=(pytest.fail.Exception,),
    ),
    Mutant(
        "a repeated pass draws other random numbers",
        "the sum is of gradients whose norms nobody has taken",
        draws_anew,
        (
            f"{_TWO_PASSES}::test_the_second_forward_pass_is_the_first[single]",
            f"{_BLOCKS}::test_random_numbers_and_precision_are_those_of_the_first_time[single-BookKeeping]",
        ),
    ),
    Mutant(
        "a checkpointed block is recomputed from arguments that were written to",
        "gradients are of other activations than those of the forward pass",
        lambda patch: patch.setattr(recomputed_blocks._Call, "_versions_now", lambda self: []),
        (f"{_BLOCKS}::test_an_argument_that_was_written_to_is_refused",),
        seen_as=(pytest.fail.Exception,),
    ),
]
