"""Faults of what a recipe adds to a step: views, averages, standardised weights, weights of classes,
Adam without the noise."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from noisette.nn import features as standardised_weights
from noisette.nn import views
from noisette.nn import views as augmentation
from noisette.training import build
from noisette.training.optimizers import AdamBC, WeightAverage
from planted import Mutant


def views_are_added_up(patch: pytest.MonkeyPatch) -> None:
    whole = views._mean
    patch.setattr(views, "_mean", lambda loss, model, made, *rest: whole(loss, model, made, *rest) * made.shape[1])


def views_of_other_records(patch: pytest.MonkeyPatch) -> None:
    """Labels are repeated in another order than the views."""
    patch.setattr(views, "_repeated", lambda rows, times: rows.repeat(times, *[1] * (rows.dim() - 1)))


def the_same_shift_for_all(patch: pytest.MonkeyPatch) -> None:
    shifted = augmentation._shifted
    patch.setattr(augmentation, "_shifted", lambda images, down, right: shifted(images, down * 0 + 1, right * 0))


def statistics_without_gradient(patch: pytest.MonkeyPatch) -> None:
    def forward(self: object, weight: Tensor) -> Tensor:
        filters = weight.flatten(1)
        mean, deviation = filters.mean(1, keepdim=True).detach(), filters.std(1, unbiased=False, keepdim=True).detach()
        return ((filters - mean) / (deviation * filters.shape[1] ** 0.5)).view_as(weight)

    patch.setattr(standardised_weights._Standardised, "forward", forward)


def one_deviation_for_all(patch: pytest.MonkeyPatch) -> None:
    def take(self: AdamBC, deviations: Mapping[int, float]) -> None:
        self._deviations = dict.fromkeys(deviations, next(iter(deviations.values())))

    patch.setattr(AdamBC, "take_deviations", take)


def the_first_deviation_for_ever(patch: pytest.MonkeyPatch) -> None:
    take = AdamBC.take_deviations
    patch.setattr(
        AdamBC, "take_deviations", lambda self, deviations: None if self._deviations else take(self, deviations)
    )


def weights_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "relative_weights", torch.tensor)


def an_average_that_begins_too_early(patch: pytest.MonkeyPatch) -> None:
    def update(self: WeightAverage, model: torch.nn.Module, *, spent: int, steps: int) -> None:
        if self._last and spent <= (1 - self._last) * steps:
            self._kept.n_averaged.zero_()
        self._kept.update_parameters(model)

    patch.setattr(WeightAverage, "update", update)


_ADAM, _VIEWS = "training/test_adam_bc.py", "nn/test_views.py"
MUTANTS = [
    Mutant(
        "views are added up",
        "more views are a larger learning rate",
        views_are_added_up,
        (f"{_VIEWS}::test_the_mean_over_views_is_clipped_once",),
    ),
    Mutant(
        "labels of other records' views",
        "several records together have the losses of strangers",
        views_of_other_records,
        ("training/test_augmented.py::test_fixed_features_are_stored_for_each_view",),
    ),
    Mutant(
        "the same shift for all views",
        "views are one view",
        the_same_shift_for_all,
        (f"{_VIEWS}::test_random_views_are_the_mirrored_and_shifted_images",),
    ),
    Mutant(
        "statistics of weights without gradient",
        "what is clipped is not the gradient",
        statistics_without_gradient,
        ("nn/test_standardised_weights.py::test_clipped_gradients_are_those_of_the_original_weights",),
    ),
    Mutant(
        "one deviation for all parameters",
        "too much is taken for noise in one layer, too little in another",
        one_deviation_for_all,
        (f"{_ADAM}::test_a_run_tells_the_deviation_of_each_gradient",),
    ),
    Mutant(
        "the first deviation for ever",
        "an adaptive clipping norm is not followed",
        the_first_deviation_for_ever,
        (f"{_ADAM}::test_steps_are_those_of_the_formula_with_other_noise_on_each_parameter_and_step",),
    ),
    Mutant(
        "weights of classes as they are declared",
        "the loss of a heavy class is clipped to that of the others",
        weights_as_they_are,
        ("training/test_class_weights.py::test_the_loss_of_a_class_has_its_weight_over_the_largest",),
    ),
    Mutant(
        "an average that begins too early",
        "one weight too many is in it",
        an_average_that_begins_too_early,
        ("training/test_averages.py::test_the_last_weights_are_averaged_evenly",),
    ),
]
