"""Faults of rounding: norms and sums in too little precision, and noise without an allowance for it."""

from __future__ import annotations

import pytest
from torch import Tensor

from noisette.core import forms
from noisette.rules.conv import KernelGradients
from planted import Mutant

_ROUNDING = "redteam/test_rounding.py::"


def _one_long_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forms, "_NORM_BLOCK", 2**40)


def _half_precision(patch: pytest.MonkeyPatch) -> None:
    """Sums in the dtype of the weights."""
    patch.setattr("noisette.core.backward.AT_LEAST_SINGLE", {})
    patch.setattr("noisette.core.clip.AT_LEAST_SINGLE", {})
    dense = forms.Dense.weighted_sum

    def weighted_sum(self: forms.Dense, weights: Tensor) -> Tensor:
        return dense(self, weights).to(self.gradients.dtype)

    patch.setattr(forms.Dense, "weighted_sum", weighted_sum)


def _no_allowance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.release.ROUNDING", 0.0)


def _no_smallest_deviation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.release._SMALLEST_STD", 0.0)


def _lost_squares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forms, "_lost", lambda dtype: 0.0)


def _any_plan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KernelGradients, "affordable", property(lambda self: 2**62))


def _no_floor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.clipping.rules._RANGE", (0.0, float("inf")))
    patch.setattr("noisette.clipping.rules.SMALLEST_BOUND", 0.0)


MUTANTS = [
    Mutant(
        "Squares added up in one long sum",
        "norms of large layers are too small, and examples exceed the bound",
        _one_long_sum,
        (_ROUNDING + "test_norm_of_sixteen_million_numbers",),
    ),
    Mutant(
        "Sums in the precision of the weights",
        "the rounding of a large batch exceeds the bound",
        _half_precision,
        (_ROUNDING + "test_sums_of_half_precision_weights_are_in_single_precision",),
    ),
    Mutant(
        "No allowance for the rounding of sums in the noise",
        "neighbouring sums differ by more than the noise is made for",
        _no_allowance,
        (_ROUNDING + "test_the_noise_is_that_of_the_bound_and_the_allowance",),
    ),
    Mutant(
        "Noise below the range of single precision",
        "the sum is released without noise",
        _no_smallest_deviation,
        (_ROUNDING + "test_tiny_bounds_and_noise_that_would_vanish_are_refused",),
    ),
    Mutant(
        "A factor too small to be squared counts as zero",
        "a tiny gradient times a huge input is not clipped",
        _lost_squares,
        (_ROUNDING + "test_norm_of_a_product_of_tiny_and_huge_is_not_lost",),
    ),
    Mutant(
        "An adaptive clipping norm without a floor",
        "norms and noise leave the range of single precision",
        _no_floor,
        (_ROUNDING + "test_adaptive_clip_stays_above_a_floor",),
    ),
    Mutant(
        "Plans of convolutions tried whatever their memory",
        "a patch embedding runs out of memory",
        _any_plan,
        ("rules/test_conv_memory.py::test_every_plan_that_is_tried_is_affordable",),
    ),
]
