"""Sums, differences, products, quotients and copies against autograd, with parameters broadcast along any axes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from noisette.rules.arithmetic import unbroadcast
from torch import Tensor

from noisette.core.forms import Examples
from noisette.core.registry import find_rule, named_arguments, rewrites
from rule_oracle import by_autograd, by_autograd_at, check_form, double

B = 4
X = (B, 3, 5)
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "Tensor.add": torch.Tensor.add,
    "Tensor.__sub__": torch.Tensor.__sub__,
    "Tensor.__mul__": torch.Tensor.__mul__,
    "Tensor.__truediv__": torch.Tensor.__truediv__,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "Tensor.true_divide": torch.Tensor.true_divide,
}


@pytest.mark.parametrize(
    "shape", [(), (5,), (1,), (3, 5), (3, 1), (1, 5), (1, 3, 5), (1, 1, 1), (B, 3, 5), (B, 1, 5), (B, 1, 1)]
)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_either_operand(operation: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x, p, dy = double(*X).abs() + 0.5, double(*shape).abs() + 0.5, double(*X)
    for operand, pair, of in (
        ("other", (x, p), lambda v: operation(x, v)),
        ("input", (p, x), lambda v: operation(v, x)),
    ):
        rule = find_rule(operation, operand)
        assert rule is not None
        check_form(rule(Examples(B), dy, **named_arguments(operation, pair, {})), by_autograd(of, p, dy, B))


@pytest.mark.parametrize("operation", [torch.add, torch.sub])
def test_alpha(operation: Callable[..., Tensor]) -> None:
    x, p, dy = double(*X), double(5), double(*X)
    for operand, pair, of in (
        ("other", (x, p), lambda v: operation(x, v, alpha=-2.5)),
        ("input", (p, x), lambda v: operation(v, x, alpha=-2.5)),
    ):
        form = find_rule(operation, operand)(Examples(B), dy, *pair, alpha=-2.5)
        check_form(form, by_autograd(of, p, dy, B))


LAYOUTS = {
    "time first": ((3, B), Examples(B, 1)),
    "folded": ((3 * B,), Examples(B)),
    "time first, folded": ((3 * B,), Examples(B, inner=True)),
    "folded on axis 1": ((1, 3 * B), Examples(B, 1)),
    "time first, folded on axis 1": ((1, 3 * B), Examples(B, 1, inner=True)),
    "on the last axis": ((3, 5, B), Examples(B, 2)),
}


@pytest.mark.parametrize("shape", [(), (5,), (1, 5)])
@pytest.mark.parametrize(("axes", "examples"), LAYOUTS.values(), ids=LAYOUTS)
def test_examples_in_other_places(axes: tuple[int, ...], examples: Examples, shape: tuple[int, ...]) -> None:
    x, p, dy = double(*axes, 5), double(*shape), double(*axes, 5)
    form = find_rule(torch.mul, "other")(examples, dy, x, p)
    check_form(form, by_autograd_at(examples, lambda v: x * v, p, dy))


def test_a_row_for_each_example_on_another_axis() -> None:
    x, p, dy = double(3, B, 5), double(B, 5), double(3, B, 5)
    examples = Examples(B, 1)
    check_form(find_rule(torch.mul, "other")(examples, dy, x, p), by_autograd_at(examples, lambda v: x * v, p, dy))


@pytest.mark.parametrize("operand", ["input", "other"])
def test_rounded_quotients_are_refused(operand: str) -> None:
    with pytest.raises(ValueError, match="rounded by 'floor' has no gradient"):
        find_rule(torch.div, operand)(Examples(B), double(B), double(B), double(1), rounding_mode="floor")


@pytest.mark.parametrize("operation", [torch.Tensor.sub_, torch.Tensor.add_, torch.Tensor.__isub__])
def test_in_place_sums_do_not_need_the_overwritten_values(operation: Callable[..., Tensor]) -> None:
    x, p, dy = double(*X), double(5), double(*X)
    for operand, owner in (("other", p), ("input", double(*X))):
        pair = (x, owner) if operand == "other" else (owner, x)
        of = (lambda v: operation(x.clone(), v)) if operand == "other" else (lambda v: operation(v.clone(), x))
        form = find_rule(operation, operand)(Examples(B), dy, *pair)
        check_form(form, by_autograd(of, owner, dy, B))


@pytest.mark.parametrize(
    "operation",
    [torch.Tensor.mul_, torch.Tensor.multiply_, torch.Tensor.__imul__, torch.Tensor.div_, torch.Tensor.__itruediv__],
)
def test_in_place_products_use_a_copy(operation: Callable[..., Tensor]) -> None:
    x, p = double(*X), double(5)
    there, here = x.clone(), x.clone()
    assert rewrites()[operation](here, p) is here
    operation(there, p)
    assert torch.equal(here, there)


def test_reflected_operations_keep_their_order() -> None:
    x, p = double(*X), double(5)
    assert torch.equal(rewrites()[torch.rsub](x, p, alpha=3), torch.rsub(x, p, alpha=3))
    assert torch.equal(rewrites()[torch.Tensor.__rsub__](x, p), p - x)
    assert torch.equal(rewrites()[torch.Tensor.__rtruediv__](x, p), p / x)


@pytest.mark.parametrize("shape", [(), (5,), (1, 1, 5), (B, 1, 5)])
def test_copies_pass_the_gradient_to_what_is_copied(shape: tuple[int, ...]) -> None:
    x, p, dy = double(*X), double(*shape), double(*X)
    form = find_rule(torch.Tensor.copy_, "src")(Examples(B), dy, x, p)
    check_form(form, by_autograd(lambda v: x.clone().copy_(v), p, dy, B))
    with pytest.raises(ValueError, match="written over it"):
        find_rule(torch.Tensor.copy_, "input")(Examples(B), dy, x, dy)


def test_positions_folded_into_the_example_axis() -> None:
    x, p, dy = double(B * 3, 5), double(5), double(B * 3, 5)
    check_form(find_rule(torch.mul, "other")(Examples(B), dy, x, p), by_autograd(lambda v: x * v, p, dy, B))


def test_output_with_more_axes_than_the_data() -> None:
    """A parameter with more axes than the data is refused, because the examples are not on the first axis."""
    with pytest.raises(ValueError, match="first axis"):
        unbroadcast(Examples(B), double(1, B, 5), double(1, 1, 5))
    with pytest.raises(ValueError, match=f"one row for each of the {B} examples"):
        unbroadcast(Examples(B), double(7, B, 5), double(7, 1, 5))
