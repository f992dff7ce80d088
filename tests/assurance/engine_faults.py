"""Faults of engines that compute twice: the gradients that are added up are not those whose norms were taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.clipping import engines
from noisette.core import clip
from noisette.core.backward import ForwardPass, per_example_gradients
from noisette.rules import recomputed_blocks, rule_check
from noisette.rules.recomputed_blocks import Surroundings
from planted import Mutant

_TWO_PASSES = "clipping/test_reweight_gp.py"
_BLOCKS = "rules/test_recomputed_blocks.py"


def draws_anew(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def with_gradients(self: Surroundings) -> Iterator[None]:
        with torch.enable_grad():
            yield

    patch.setattr(Surroundings, "restored", with_gradients)


def keeps_every_activation(patch: pytest.MonkeyPatch) -> None:
    """The last pass leaves the uses in the recording."""

    def kept(
        forward: ForwardPass, parameters: Mapping[str, Tensor], value_of: Any, *, retain_graph: bool = False
    ) -> dict[str, Any]:
        alive.append(list(forward.recording.uses))
        return whole(forward, parameters, value_of, retain_graph=retain_graph)

    alive: list[Any] = []
    whole = per_example_gradients
    patch.setattr(engines, "per_example_gradients", kept)
    patch.setattr(clip, "per_example_gradients", kept)


def checks_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rule_check, "_compare", lambda *arguments: None)


MUTANTS = [
    Mutant(
        "a rule of the user is not compared with autograd",
        "norms of gradients that are not those of the sum",
        checks_nothing,
        (
            "rules/test_rule_check.py::test_wrong_rule_is_refused_by_name",
            "rules/test_rule_check.py::test_an_operation_that_mixes_examples_is_refused",
        ),
        seen_as=(pytest.fail.Exception,),
    ),
    Mutant(
        "activations stay until the last pass has ended",
        "the memory of all layers' inputs and gradients at once",
        keeps_every_activation,
        (f"{_TWO_PASSES}::test_activations_are_freed_as_the_last_pass_goes",),
    ),
    Mutant(
        "the second pass is not held to the norms of the first",
        "a model that computes something else the second time moves the sum by any number of bounds",
        lambda patch: patch.setattr(engines, "_shortening", lambda before, now: torch.ones_like(now)),
        (
            f"{_TWO_PASSES}::test_the_bound_holds_where_the_second_forward_pass_differs[5.0]",
            f"{_TWO_PASSES}::test_the_bound_holds_where_the_second_backward_pass_differs[5.0]",
        ),
    ),
    Mutant(
        "gradients that are finite in the first pass alone are added up",
        "one record makes the sum infinite",
        lambda patch: patch.setattr(engines, "_check_finite", lambda first, second: None),
        (f"{_TWO_PASSES}::test_a_gradient_that_is_finite_once_alone_is_refused",),
        seen_as=(pytest.fail.Exception,),
    ),
    Mutant(
        "a repeated pass draws other random numbers",
        "the sum is of gradients whose norms nobody has taken",
        draws_anew,
        (
            f"{_TWO_PASSES}::test_the_second_pass_is_the_first[checkpointed-single]",
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
