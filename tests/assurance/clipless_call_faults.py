"""Faults in what a bound of a Lipschitz network assumes of a call: shapes, settings, hooks, constants and targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from noisette.lipschitz import bound, model_call, torch_modules
from noisette.lipschitz.bound import LipschitzBound
from noisette.lipschitz.model_call import ModelCall
from noisette.nn.lipschitz import _targets
from planted import Mutant, Patch

_HERE = "redteam/test_clipless_bounds.py"


def without(place: Any, name: str, value: Any = None) -> Patch:
    """A function that checks nothing, and returns the same value always."""
    return lambda patch: patch.setattr(place, name, lambda *args: value)


def any_shape(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_call, "_check_shapes", lambda shape, arguments, scores: scores.shape[0])


def bounds_of_the_release(patch: pytest.MonkeyPatch) -> None:
    """The bounds are those of the settings when the sums are released."""
    patch.setattr(LipschitzBound, "_held", property(lambda self: None, lambda self, value: None), raising=False)


def scores_of_the_user(patch: pytest.MonkeyPatch) -> None:
    """The backward pass starts at the very tensor that the user has."""
    whole = bound.record_call

    def recorded(*args: Any) -> tuple[Tensor, ModelCall]:
        scores, call = whole(*args)
        return scores, replace(call, scores=get_gradient_edge(scores))

    patch.setattr(bound, "record_call", recorded)


def weights_alone(patch: pytest.MonkeyPatch) -> None:
    """Certified norms are believed, whoever wrote them."""
    whole = bound.weight_fingerprint
    patch.setattr(bound, "weight_fingerprint", lambda model: whole(model)[0])


def every_target_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_targets, "one_or_nan", lambda known, scores: torch.ones_like(known, dtype=scores.dtype))


MUTANTS = [
    Mutant(
        "inputs of any shape",
        "a larger image moves the sum by seven times its bound",
        any_shape,
        (
            f"{_HERE}::test_a_larger_image_or_a_longer_sequence_than_declared_is_refused",
            f"{_HERE}::test_no_way_into_the_model_avoids_the_check_of_shapes",
            f"{_HERE}::test_a_hook_that_enlarges_the_input_is_refused",
        ),
    ),
    Mutant(
        "measured shapes believed",
        "layers behind a padding see more than their bounds assume",
        without(model_call, "check_measured_shape"),
        (f"{_HERE}::test_a_front_part_that_changes_its_shape_later_is_refused",),
    ),
    Mutant(
        "bounds of the settings at release",
        "a setting that is changed before the step lowers the noise below what the batch needs",
        bounds_of_the_release,
        (f"{_HERE}::test_a_change_before_the_step_does_not_lower_the_bound_of_the_batch",),
    ),
    Mutant(
        "bounds grow within a batch",
        "later microbatches move the sum beyond the bound of the first",
        without(LipschitzBound, "_refuse_grown_bounds"),
        (f"{_HERE}::test_a_change_between_microbatches_does_not_lower_the_bound_of_the_batch",),
    ),
    Mutant(
        "hooks of others take part",
        "a hook scales activations or gradients by any factor",
        without(bound, "has_foreign_hooks", False),
        (f"{_HERE}::test_a_hook_that_changes_values_breaks_no_bound",),
    ),
    Mutant(
        "hooks on the scores take part",
        "a hook scales the gradient after it was held to its bound",
        scores_of_the_user,
        (f"{_HERE}::test_hooks_on_the_scores_see_the_gradient_of_the_loss_and_change_no_bound",),
    ),
    Mutant(
        "certified norms believed",
        "a layer that takes over a weight answers with the norm of another one",
        weights_alone,
        (f"{_HERE}::test_norms_that_were_not_certified_for_the_weights_are_certified_again",),
    ),
    Mutant(
        "a jump has a Lipschitz constant",
        "a certificate covers inputs of another class",
        lambda patch: patch.setattr(torch_modules, "_SMOOTH_THRESHOLD", -1.0),
        (f"{_HERE}::test_an_activation_with_a_jump_has_no_bound_and_no_certificate",),
    ),
    Mutant(
        "every target counts",
        "a record without a class trains the first one",
        every_target_known,
        (f"{_HERE}::test_a_target_that_is_none_contributes_nothing_to_gradient_and_count",),
    ),
]
