"""Where operations shall be few, the traced plans of a convolution grow neither with the batch nor by measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from noisette.core.forms import Examples, compact, find_rule
from noisette.rules import conv as autotune
from noisette.rules import conv as kernel_gradients
from noisette.rules.conv import few_operations


@pytest.fixture(autouse=True)
def _no_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_WINNERS", {})


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


def gradients(case: Case, x: Tensor, weight: Tensor, dy: Tensor) -> object:
    rule = find_rule(case.operation, "weight")
    assert rule is not None
    return rule(Examples(len(x)), dy, x, weight, None, **case.settings)


def norms_and_sum(case: Case) -> Callable[..., tuple[Tensor, Tensor]]:
    """As the engine computes them: the norms of a form that may be written out, and a weighted sum."""

    def run(x: Tensor, weight: Tensor, dy: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            form = compact(gradients(case, x, weight, dy))
            return form.squared_norms(), form.weighted_sum(factors)

    return run


def inputs(case: Case, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = torch.randn(b, *case.image).double(), torch.randn(case.weight).double()
    dy = torch.randn_like(case.operation(x, weight, None, **case.settings))
    return x, weight, dy, torch.linspace(0, 1, b).double()


def alone(case: Case, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    """The gradients of one example after another by autograd, (b, *weight)."""
    weight = weight.clone().requires_grad_()
    each = (case.operation(one[None], weight, None, **case.settings) for one in x)
    return torch.stack([torch.autograd.grad(y, weight, one[None])[0] for y, one in zip(each, dy, strict=True)])


def last_plans(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """In place of measuring, the plan at this place is chosen."""

    def choose(key: object, candidates: dict[str, object], device: torch.device) -> str:
        return list(candidates)[place % len(candidates)]

    monkeypatch.setattr(kernel_gradients, "fastest", choose)


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_plan_has_as_many_operations_for_twice_the_batch(name: str, place: int, monkeypatch) -> None:
    last_plans(monkeypatch, place)
    case, nodes = CASES[name], []
    for b in (16, 32):
        tensors = inputs(case, b)
        with few_operations():
            traced = make_fx(norms_and_sum(case))(*tensors)
        nodes.append(len(traced.graph.nodes))
        each = alone(case, *tensors[:3])
        found_norms, found_sum = traced(*tensors)
        torch.testing.assert_close(found_norms, each.flatten(1).square().sum(1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found_sum, torch.einsum("b,b...->...", tensors[3], each), rtol=1e-10, atol=1e-10)
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

        monkeypatch.setattr(autotune, "_best_time", refuse)
        traced = make_fx(run)(*tensors)
    for found, expected in zip(traced(*tensors), eager, strict=True):
        assert torch.equal(found, expected)


def test_nothing_is_measured_within_a_trace() -> None:
    case = CASES["late layer"]
    run, tensors = norms_and_sum(case), inputs(case, 16)
    run(*tensors)  # measures other plans, for another context
    with few_operations(), pytest.raises(RuntimeError, match="before it is traced"):
        make_fx(run)(*tensors)


def test_plans_of_unbounded_memory_are_left_out() -> None:
    """A patch embedding would take a Gram matrix of all pixels; large weights, explicit gradients of every example."""
    patches = Case(torch.conv2d, (3, 64, 64), (64, 3, 16, 16), {"stride": 16})
    late = CASES["many parts"]
    with few_operations():
        forms = [gradients(case, *inputs(case, 2)[:3]) for case in (patches, late)]
        plans = [kernel_gradients.norm_plans(form) for form in forms]
    assert set(plans[0]) == {"gram of patches", "unfold, dropped", "backend, dropped", "grouped, dropped"}
    assert set(plans[1]) == {"gram of pixels"}
