"""Elementwise operations on operands that broadcast, against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from noisette.rules.elementwise import prelu_weight
from torch import Tensor

from noisette.core.forms import Examples
from noisette.core.registry import find_rule, rewrites
from rule_oracle import by_autograd, by_autograd_at, check_form, double

B = 4
SHAPES = [(), (5,), (3, 1), (1, 1, 5), (B, 1, 5)]
BINARY = ("maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "atan2")


def check(operation: Callable[..., Tensor], named: dict[str, Tensor], operand: str, examples: Examples) -> None:
    dy = torch.randn_like(operation(*named.values()))
    rule = find_rule(operation, operand)
    assert rule is not None
    form = rule(examples, dy, **named)
    truth = by_autograd_at(examples, lambda v: operation(*(named | {operand: v}).values()), named[operand], dy)
    check_form(form, truth)


def positive(*shape: int) -> Tensor:
    return double(*shape).abs() + 0.5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BINARY)
def test_either_operand(name: str, shape: tuple[int, ...]) -> None:
    for operation in (getattr(torch, name), getattr(Tensor, name)):
        check(operation, {"input": double(B, 3, 5), "other": double(*shape)}, "other", Examples(B))
        check(operation, {"input": double(*shape), "other": double(B, 3, 5)}, "input", Examples(B))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operation", [torch.pow, torch.Tensor.pow, torch.Tensor.__pow__])
def test_powers(operation: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    check(operation, {"input": positive(B, 3, 5), "exponent": double(*shape)}, "exponent", Examples(B))
    check(operation, {"input": positive(*shape), "exponent": double(B, 3, 5)}, "input", Examples(B))


@pytest.mark.parametrize("shape", SHAPES)
def test_choices(shape: tuple[int, ...]) -> None:
    where = double(B, 3, 1) > 0
    for operand in ("input", "other"):
        named = {"condition": where, "input": double(B, 3, 5), "other": double(B, 3, 5)}
        check(torch.where, named | {operand: double(*shape)}, operand, Examples(B))
        # Neither branch has an example axis; only the condition has.
        named |= {"input": double(5), "other": double(1)}
        check(torch.where, named | {operand: double(3, 5)}, operand, Examples(B))


@pytest.mark.parametrize("shape", SHAPES)
def test_limits(shape: tuple[int, ...]) -> None:
    for operation in (torch.clamp, torch.clip, torch.Tensor.clamp):
        for operand in ("min", "max"):
            named = {"input": double(B, 3, 5), "min": double(B, 3, 5) - 0.5, "max": double(B, 3, 5) + 0.5}
            check(operation, named | {operand: double(*shape)}, operand, Examples(B))


def test_one_limit() -> None:
    x, p, dy = double(B, 5), double(5), double(B, 5)
    for operand in ("min", "max"):
        form = find_rule(torch.clamp, operand)(Examples(B), dy, input=x, **{operand: p})
        truth = by_autograd_at(Examples(B), lambda v, k=operand: torch.clamp(x, **{k: v}), p, dy)
        assert truth.any()
        check_form(form, truth)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operand", ["input", "end", "weight"])
def test_interpolation(operand: str, shape: tuple[int, ...]) -> None:
    named = {name: double(B, 3, 5) for name in ("input", "end", "weight")} | {operand: double(*shape)}
    check(torch.lerp, named, operand, Examples(B))
    check(torch.Tensor.lerp, named, operand, Examples(B))


@pytest.mark.parametrize(
    "examples", [Examples(B), Examples(B, inner=True), Examples(B, 1), Examples(B, 1, inner=True)], ids=str
)
def test_examples_in_other_places(examples: Examples) -> None:
    x = positive(2, 3 * B, 5) if examples.axis else positive(3 * B, 2, 5)
    for p in (double(), double(5), double(1, 1, 5)):
        check(torch.pow, {"input": x, "exponent": p}, "exponent", examples)


def test_rewritten_operations_are_equivalent() -> None:
    x, p, z = double(B, 5), double(5), double(B, 1)
    for operation in (torch.addcmul, torch.addcdiv, torch.Tensor.addcmul, torch.Tensor.addcdiv):
        torch.testing.assert_close(rewrites()[operation](x, p, z, value=-2), operation(x, p, z, value=-2))
    mask = x > 0
    assert torch.equal(rewrites()[torch.Tensor.where](x, mask, p), x.where(mask, p))
    for value in (0.5, double()):
        assert torch.equal(rewrites()[torch.Tensor.masked_fill](x, mask, value), x.masked_fill(mask, value))


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
@pytest.mark.parametrize("slopes", [(), (1,), (6,)])
def test_learned_slopes(places: tuple[int, ...], slopes: tuple[int, ...]) -> None:
    x, w, dy = double(B, 6, *places), double(*slopes), double(B, 6, *places)
    x.view(-1)[:5] = 0
    check_form(prelu_weight(Examples(B), dy, x, w), by_autograd(lambda v: F.prelu(x, v), w, dy, B))


def test_one_learned_slope_for_scalar_examples() -> None:
    x, w, dy = double(B), double(1), double(B)
    check_form(prelu_weight(Examples(B), dy, x, w), by_autograd(lambda v: torch.prelu(x, v), w, dy, B))
