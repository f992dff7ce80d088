"""The plans of a kernel's gradients: all have the same result, few are candidates, and the fastest one is measured."""

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from noisette import PerExampleClip
from noisette.core import forms
from noisette.core.forms import Dense, Examples, compact
from noisette.rules import conv as kernels
from noisette.rules.conv import EXPLICIT_PLANS, GRAM_PLANS, KernelGradients, fastest, few_operations
from rule_oracle import TOLERANCE, by_autograd, double, rule_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_WINNERS", {})


def plain_form(b: int) -> KernelGradients:
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

    monkeypatch.setattr(kernels, "fastest", run_all)
    monkeypatch.setattr(kernels, "_MEASURED_FROM", 1)
    return results


NORMS = {*GRAM_PLANS, *(f"{name}, dropped" for name in EXPLICIT_PLANS)}
FORMS = {"factors", *(f"{name}, kept" for name in EXPLICIT_PLANS)}


@pytest.mark.parametrize(("at_once", "cached"), [(1, 10**6), (10**3, 300), (10**9, 1)])
def test_norms_are_the_same_by_every_plan_and_in_parts_of_any_size(tried, monkeypatch, at_once, cached) -> None:
    monkeypatch.setattr(forms, "_TEMPORARY_SIZE", at_once)
    monkeypatch.setattr(forms, "_TEMPORARY_SHARE", 0)
    monkeypatch.setattr(kernels, "_CACHED", cached)
    form = plain_form(7)
    form.squared_norms()
    assert tried.keys() == NORMS
    for found in tried.values():
        torch.testing.assert_close(found, form.explicit().flatten(1).square().sum(1), **TOLERANCE)


@pytest.mark.parametrize("part", [0.01, 0.5, 1000])
def test_norms_are_the_same_by_every_plan_of_few_operations(tried, monkeypatch, part) -> None:
    monkeypatch.setattr(kernels, "_PART", part)
    monkeypatch.setattr(kernels, "_PARTS", 3 if part < 1 else 10**6)
    monkeypatch.setattr(kernels, "_KEEP_IN_A_GRAPH", 10**9)
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


LARGE = {
    "patch embedding": (lambda: nn.Conv2d(3, 768, 16, 16), (3, 224, 224)),
    "patches of 32": (lambda: nn.Conv2d(3, 768, 32, 32), (3, 256, 256)),
    "large kernel": (lambda: nn.Conv2d(8, 8, 31, padding=15), (8, 24, 24)),
}


@pytest.mark.parametrize(("name", "b"), [("patch embedding", 16), ("patches of 32", 2), ("large kernel", 16)])
def test_every_plan_that_is_tried_is_affordable(name: str, b: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def affordable(norms, size):
        def run(form: KernelGradients):
            assert size(form) <= 2**23, "a plan of unbounded memory was tried"
            return norms(form)

        return run

    planned = {n: (affordable(norms, size), size) for n, (norms, size) in GRAM_PLANS.items()}
    monkeypatch.setattr(kernels, "GRAM_PLANS", planned)
    make, shape = LARGE[name]
    model = make()
    clip = PerExampleClip(model, 1.0)
    clip.accumulate(lambda model, x: model(x).square().mean(), torch.randn(b, *shape))
    [total] = clip.pop_sums()
    assert all(g.isfinite().all() for g in total.grads)


def test_the_fastest_is_chosen_and_cached() -> None:
    calls = []
    candidates = {"slow": lambda: (calls.append("slow"), time.sleep(0.02)), "quick": lambda: calls.append("quick")}
    assert (fastest("key", candidates, CPU), calls.count("slow")) == ("quick", 2)
    measured = len(calls)
    assert (fastest("key", candidates, CPU), len(calls)) == ("quick", measured)
    fastest("another key", candidates, CPU)
    assert len(calls) > measured


def test_nothing_is_measured_under_deterministic_algorithms() -> None:
    def refuse() -> None:
        raise AssertionError("measured")

    assert fastest("key", {"only": refuse}, CPU) == "only"
    torch.use_deterministic_algorithms(True)
    try:
        assert fastest("key", {"first": refuse, "second": refuse}, CPU) == "first"
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Case:
    operation: Callable[..., Tensor]
    image: tuple[int, ...]
    weight: tuple[int, ...]
    settings: dict[str, object]


CASES = {
    "late layer": Case(torch.conv2d, (48, 4, 4), (48, 48, 3, 3), {"padding": 1}),
    "uneven": Case(torch.conv2d, (4, 9, 6), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
    "many parts": Case(torch.conv2d, (32, 2, 2), (32, 32, 5, 5), {"padding": 2}),
    "three axes": Case(torch.conv3d, (2, 5, 6, 4), (3, 2, 2, 3, 2), {"padding": 1, "dilation": (1, 2, 1)}),
    "transposed": Case(torch.conv_transpose2d, (4, 6, 5), (4, 3, 3, 2), {"stride": 2, "output_padding": (1, 0)}),
}


def norms_and_sum(case: Case) -> Callable[..., tuple[Tensor, Tensor]]:
    """As the engine computes them: the norms of a form that may be written out, and a weighted sum."""

    def run(x: Tensor, weight: Tensor, dy: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            form = compact(rule_of(case.operation)(Examples(len(x)), dy, x, weight, None, **case.settings))
            return form.squared_norms(), form.weighted_sum(factors)

    return run


def inputs(case: Case, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = torch.randn(b, *case.image).double(), torch.randn(case.weight).double()
    dy = torch.randn_like(case.operation(x, weight, None, **case.settings))
    return x, weight, dy, torch.linspace(0, 1, b).double()


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_plan_has_as_many_operations_for_twice_the_batch(name: str, place: int, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "fastest", lambda key, plans, device: list(plans)[place % len(plans)])
    case, nodes = CASES[name], []
    for b in (16, 32):
        tensors = inputs(case, b)
        with few_operations():
            traced = make_fx(norms_and_sum(case))(*tensors)
        nodes.append(len(traced.graph.nodes))
        x, weight, dy, factors = tensors
        each = by_autograd(partial(lambda x, w: case.operation(x, w, None, **case.settings), x), weight, dy, b)
        found_norms, found_sum = traced(*tensors)
        torch.testing.assert_close(found_norms, each.flatten(1).square().sum(1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found_sum, torch.einsum("b,b...->...", factors, each), rtol=1e-10, atol=1e-10)
    assert nodes[0] == nodes[1]
    assert nodes[0] < 200


@pytest.mark.parametrize("name", CASES)
def test_a_trace_takes_the_plans_that_were_measured_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    run, tensors = norms_and_sum(case), inputs(case, 16)
    with few_operations():
        eager = run(*tensors)

        def refuse(*_: object) -> float:
            raise AssertionError("measured within a trace")

        monkeypatch.setattr(kernels, "_best_time", refuse)
        traced = make_fx(run)(*tensors)
    for found, expected in zip(traced(*tensors), eager, strict=True):
        assert torch.equal(found, expected)


def test_nothing_is_measured_within_a_trace() -> None:
    case = CASES["late layer"]
    run, tensors = norms_and_sum(case), inputs(case, 16)
    run(*tensors)  # measures other plans, for another context
    with few_operations(), pytest.raises(RuntimeError, match=r"nothing was measured.*within few_operations"):
        make_fx(run)(*tensors)
