"""Scales and shifts against autograd, for every way a parameter can be broadcast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from noisette.rules import find_rule, named_arguments
from noisette.rules._examples import Examples
from noisette.rules.elementwise import reduced
from rule_oracle import by_autograd, check_form, double

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


def test_positions_folded_into_the_example_axis() -> None:
    x, p, dy = double(B * 3, 5), double(5), double(B * 3, 5)
    check_form(find_rule(torch.mul, "other")(Examples(B), dy, x, p), by_autograd(lambda v: x * v, p, dy, B))


def test_output_with_more_axes_than_the_data() -> None:
    """A parameter that moves the examples off the first axis is refused."""
    with pytest.raises(ValueError, match="first axis"):
        reduced(Examples(B), double(1, B, 5), double(1, 1, 5))
    with pytest.raises(ValueError, match=f"meets the {B} examples"):
        reduced(Examples(B), double(7, B, 5), double(7, 1, 5))
