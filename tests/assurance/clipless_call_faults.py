"""Faults in what a bound of a Lipschitz network assumes of a call: shapes, settings, losses, hooks, targets."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from noisette.core.loss import OutsideTensors
from noisette.core.state import ModelBuffers
from noisette.lipschitz import bound
from noisette.lipschitz import bound as model_call
from noisette.lipschitz import losses as _targets
from noisette.lipschitz import propagation as torch_modules
from noisette.lipschitz.bound import LipschitzBound, LossWatch
from planted import Mutant, Patch

_HERE = "redteam/test_clipless_bounds.py"


def without(place: Any, name: str, value: Any = None) -> Patch:
    """A function that checks nothing, and returns the same value always."""
    return lambda patch: patch.setattr(place, name, lambda *args: value)


def any_shape(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_call, "_check_shapes", lambda shape, arguments, scores: None)


def bounds_of_the_release(patch: pytest.MonkeyPatch) -> None:
    """The bounds are those of the settings when the sums are released."""
    patch.setattr(LipschitzBound, "_held", property(lambda self: None, lambda self, value: None), raising=False)


def past_the_scores(patch: pytest.MonkeyPatch) -> None:
    """The gradient at the scores alone is asked for, whatever else the loss depends on."""
    at_scores = lambda losses, calls, _: torch.autograd.grad(losses.sum(), [calls[-1].leaf])[0]  # noqa: E731
    patch.setattr(bound, "gradient_at_scores", at_scores)


def every_tensor_constant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutsideTensors, "check", lambda self, tensor: None)


def buffers_of_the_model(patch: pytest.MonkeyPatch) -> None:
    """The model computes with its own buffers."""
    patch.setattr(ModelBuffers, "lent", lambda self, change=None: nullcontext())


def weights_alone(patch: pytest.MonkeyPatch) -> None:
    """Certified norms are believed, whoever wrote them."""
    whole = bound.weight_fingerprint
    weights = lambda model: whole(model)[: len(list(model.parameters()))]  # noqa: E731
    patch.setattr(bound, "weight_fingerprint", weights)


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
        "a hook scales activations by any factor",
        without(model_call, "_hooks", ()),
        (f"{_HERE}::test_hooks_of_the_user_take_no_part_and_are_there_again",),
    ),
    Mutant(
        "weights reached past the scores",
        "a penalty or an earlier call is dropped from what is trained, without a word",
        past_the_scores,
        ("lipschitz/test_lipschitz_accumulate.py::test_what_has_no_bound_is_refused",),
    ),
    Mutant(
        "every tensor constant",
        "weights of the classes of the batch couple its examples",
        every_tensor_constant,
        (
            "lipschitz/test_lipschitz_accumulate.py::"
            "test_weights_of_the_classes_of_the_batch_are_refused_unless_they_are_public",
        ),
    ),
    Mutant(
        "values of other records kept",
        "an example's gradient is computed from what the last batch has left",
        without(LossWatch, "_check_of_this_call"),
        ("lipschitz/test_lipschitz_accumulate.py::test_a_tensor_that_an_earlier_call_has_left_is_refused",),
    ),
    Mutant(
        "statistics of a call stay",
        "buffers carry values of records into later batches and the saved model",
        buffers_of_the_model,
        ("lipschitz/test_lipschitz_accumulate.py::test_what_a_call_writes_into_buffers_is_dropped",),
    ),
    Mutant(
        "stated bounds believed",
        "a module that states half of its bound halves the noise",
        without(bound, "check_stated_bounds"),
        ("lipschitz/test_lipschitz_bound.py::test_a_module_that_understates_its_bound_is_refused",),
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
