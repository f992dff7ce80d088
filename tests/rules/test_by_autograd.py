"""Copies of an operand, one per example, against autograd with the output gradients of all other examples zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from noisette.rules.by_autograd import by_expansion
from torch import Tensor

from noisette.core.forms import Examples, PerExampleRow
from rule_oracle import by_autograd, check_form, double

B = 4
SHAPES = [(), (5,), (1, 5), (3, 1), (3, 5), (1, 3, 5), (1, 1, 1)]


def operation(x: Tensor) -> Callable[[Tensor], Tensor]:
    """A function of a broadcast operand whose gradient depends on the data and on the operand."""
    return lambda p: torch.sin(x * p) + p.square()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("b", [1, 2, B])
def test_broadcast_operands_get_the_gradient_of_each_example(shape: tuple[int, ...], b: int) -> None:
    x, p, dy = double(b, 3, 5), double(*shape), double(b, 3, 5)
    check_form(by_expansion(Examples(b), dy, p, operation(x)), by_autograd(operation(x), p, dy, b))


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_examples_on_another_axis(shape: tuple[int, ...]) -> None:
    x, p, dy = double(3, B, 5), double(*shape), double(3, B, 5)
    found = by_expansion(Examples(B, axis=1), dy, p, operation(x))
    check_form(found, by_autograd(lambda p: operation(x)(p).transpose(0, 1), p, dy.transpose(0, 1), B))


@pytest.mark.parametrize("inner", [False, True])
def test_positions_folded_into_the_example_axis(inner: bool) -> None:
    x, p, dy = double(B * 3, 5), double(5), double(B * 3, 5)
    examples = Examples(B, inner=inner)

    def apart(p: Tensor) -> Tensor:
        return examples.first(operation(x)(p))

    check_form(by_expansion(examples, dy, p, operation(x)), by_autograd(apart, p, examples.first(dy), B))


def test_an_operand_with_the_example_axis_touches_one_row_of_it_in_each_example() -> None:
    x, p, dy = double(B, 3, 5), double(B, 1, 5), double(B, 3, 5)
    found = by_expansion(Examples(B), dy, p, operation(x))
    assert isinstance(found, PerExampleRow)
    check_form(found, by_autograd(operation(x), p, dy, B))


def test_the_operand_and_the_data_are_unchanged() -> None:
    x, p, dy = double(B, 5).requires_grad_(), double(5).requires_grad_(), double(B, 5)
    with torch.no_grad():
        by_expansion(Examples(B), dy, p, operation(x))
    assert x.grad is None
    assert p.grad is None
    assert p.is_leaf


def test_rows_that_are_not_the_batch_are_refused() -> None:
    x, p, dy = double(B * 3, 5), double(B * 3, 5), double(B * 3, 5)
    with pytest.raises(ValueError, match="one row for each of the 4 examples"):
        by_expansion(Examples(B), dy, p, operation(x))


def test_an_operand_of_another_size_on_the_example_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 5\) where \(4, 5\) has examples on axis 0"):
        by_expansion(Examples(B), double(B, 5), double(2, 5), lambda p: p.repeat(2, 1))
