"""The plans of a kernel's gradients: all have the same result, and which of them are candidates."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from noisette.core import forms
from noisette.core.forms import Dense, Examples, compact, find_rule
from noisette.rules import conv as explicit_kernels
from noisette.rules import conv as kernel_gradients
from noisette.rules.conv import EXPLICIT_PLANS, GRAM_PLANS, KernelGradients, few_operations
from rule_oracle import TOLERANCE, double


def rule_of(operation: Callable[..., Tensor]) -> Callable[..., KernelGradients]:
    found = find_rule(operation, "weight")
    assert found is not None
    return found


def plain_form(b: int) -> KernelGradients:
    """Two groups, and few enough positions for Gram matrices."""
    x, w = double(b, 4, 4, 3), double(6, 2, 3, 2)
    numbers = {"stride": (2, 1), "padding": (1, 0), "groups": 2}
    return rule_of(torch.conv2d)(Examples(b), torch.randn_like(torch.conv2d(x, w, **numbers)), x, w, None, **numbers)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Every plan that would be measured is run, and the last one is chosen."""
    results: dict[str, object] = {}

    def run_all(key: object, candidates: dict[str, Callable[[], object]], device: torch.device) -> str:
        results.update({name: candidate() for name, candidate in candidates.items()})
        return list(candidates)[-1]

    monkeypatch.setattr(kernel_gradients, "fastest", run_all)
    monkeypatch.setattr(kernel_gradients, "_MEASURED_FROM", 1)
    return results


NORMS = {*GRAM_PLANS, *(f"{name}, dropped" for name in EXPLICIT_PLANS)}
FORMS = {"factors", *(f"{name}, kept" for name in EXPLICIT_PLANS)}


@pytest.mark.parametrize("at_once", [1, 10**3, 10**9])
@pytest.mark.parametrize("cached", [1, 300, 10**6])
def test_norms_are_the_same_by_every_plan_and_in_parts_of_any_size(tried, monkeypatch, at_once, cached) -> None:
    monkeypatch.setattr(forms, "_TEMPORARY_SIZE", at_once)
    monkeypatch.setattr(forms, "_TEMPORARY_SHARE", 0)
    monkeypatch.setattr(explicit_kernels, "_CACHED", cached)
    form = plain_form(7)
    form.squared_norms()
    assert tried.keys() == NORMS
    for found in tried.values():
        torch.testing.assert_close(found, form.explicit().flatten(1).square().sum(1), **TOLERANCE)


@pytest.mark.parametrize("part", [0.01, 0.5, 1000])
def test_norms_are_the_same_by_every_plan_of_few_operations(tried, monkeypatch, part) -> None:
    monkeypatch.setattr(kernel_gradients, "_PART", part)
    monkeypatch.setattr(kernel_gradients, "_PARTS", 3 if part < 1 else 10**6)
    monkeypatch.setattr(kernel_gradients, "_KEEP_IN_A_GRAPH", 10**9)
    form = plain_form(7)
    with few_operations():
        compact(form)
        form.squared_norms()
    if part == 1000:
        assert tried.keys() == (NORMS | FORMS) - {"loop, kept", "loop, dropped"}
    truth = form.explicit().flatten(1).square().sum(1)
    norms = {name: found for name, found in tried.items() if name in NORMS}
    assert norms
    for found in norms.values():
        torch.testing.assert_close(found, truth, **TOLERANCE)


def small_kernel(b: int) -> tuple[Tensor, Tensor, KernelGradients]:
    """A form whose explicit gradients need less memory than its factors."""
    x, dy = double(b, 2, 12, 11), double(b, 3, 10, 9)
    return x, dy, rule_of(torch.conv2d)(Examples(b), dy, x, double(3, 2, 3, 3), None)


@pytest.mark.parametrize("b", [3, 20])  # without and with a rehearsal
def test_gradients_replace_their_factors(b: int) -> None:
    x, dy, form = small_kernel(b)
    factors = [weakref.ref(x), weakref.ref(dy)]
    form = compact(form)
    assert isinstance(form, Dense)
    form.squared_norms()
    del x, dy
    gc.collect()
    assert [ref() for ref in factors] == [None, None]


@pytest.mark.parametrize("size", [1, 4])
def test_no_examples(size: int) -> None:
    x, dy, w = double(0, 2, size, size), double(0, 3, size, size), double(3, 2, 1, 1)
    form = rule_of(torch.conv2d)(Examples(0), dy, x, w, None)
    for same in (form, compact(form)):
        assert same.explicit().shape == (0, 3, 2, 1, 1)
        assert same.squared_norms().shape == (0,)
        assert not same.weighted_sum(double(0)).any()
