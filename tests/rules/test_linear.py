"""Linear layers and matrix products against autograd, with two to four axes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.core.forms import Examples
from noisette.core.registry import find_rule, rewrites
from noisette.rules.linear import linear_bias, linear_input, linear_weight
from rule_oracle import by_autograd, by_autograd_at, check_form, double

B = 4
matmul_other = find_rule(torch.matmul, "other")
addmm_input, addmm_mat2 = find_rule(torch.addmm, "input"), find_rule(torch.addmm, "mat2")
AXES = [(), (3,), (2, 3)]


@pytest.mark.parametrize("between", AXES)
def test_linear(between: tuple[int, ...]) -> None:
    x, w, bias, dy = double(B, *between, 5), double(6, 5), double(6), double(B, *between, 6)
    check_form(linear_weight(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, v, bias), w, dy, B))
    check_form(linear_bias(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, w, v), bias, dy, B))


def test_positions_folded_into_the_example_axis() -> None:
    x, w, bias, dy = double(B * 3, 5), double(6, 5), double(6), double(B * 3, 6)
    check_form(linear_weight(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, v), w, dy, B))
    check_form(linear_bias(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, w, v), bias, dy, B))


@pytest.mark.parametrize("between", AXES)
def test_matrix_product(between: tuple[int, ...]) -> None:
    x, w, dy = double(B, *between, 5), double(5, 6), double(B, *between, 6)
    check_form(matmul_other(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


@pytest.mark.parametrize("between", AXES)
def test_matrix_product_with_a_vector(between: tuple[int, ...]) -> None:
    x, w, dy = double(B, *between, 5), double(5), double(B, *between)
    check_form(matmul_other(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


PRODUCTS = {
    "stack": ((B, 7, 2, 5), (7, 5, 6), "other"),
    "stack that broadcasts": ((B, 7, 2, 5), (1, 5, 6), "other"),
    "stack with more axes": ((7, 1, 2, 5), (7, B, 5, 6), "other"),
    "vector on the left": ((5,), (B, 2, 5, 6), "input"),
    "matrix on the left": ((6, 5), (B, 5, 3), "input"),
    "stack on the left": ((7, 6, 5), (B, 7, 5, 3), "input"),
    "on the left of vectors": ((B, 6, 5), (5,), "input"),
    "own matrix of each example": ((B, 2, 5), (B, 5, 6), "other"),
}


@pytest.mark.parametrize(("left", "right", "operand"), PRODUCTS.values(), ids=PRODUCTS)
def test_matrix_products_of_any_axes(left: tuple[int, ...], right: tuple[int, ...], operand: str) -> None:
    pair = {"input": double(*left), "other": double(*right)}
    dy = torch.randn_like(torch.matmul(**pair))
    examples = Examples(B, 1) if left[0] == 7 and len(left) == 4 else Examples(B)
    for operation in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.linalg.matmul):
        form = find_rule(operation, operand)(examples, dy, **pair)
        truth = by_autograd_at(examples, lambda v: torch.matmul(**(pair | {operand: v})), pair[operand], dy)
        check_form(form, truth)


def test_matrix_with_a_column_for_each_example() -> None:
    x, w, dy, examples = double(6, 5), double(5, B), double(6, B), Examples(B, 1)
    check_form(matmul_other(examples, dy, x, w), by_autograd_at(examples, lambda v: x @ v, w, dy))


def test_named_products() -> None:
    """Of matrices, of a matrix and a vector, of stacks."""
    for operation, left, right in (
        (torch.mm, double(B, 5), double(5, 6)),
        (torch.mv, double(B, 5), double(5)),
        (torch.bmm, double(B, 2, 5), double(B, 5, 6)),
    ):
        dy = torch.randn_like(operation(left, right))
        form = find_rule(operation, "other")(Examples(B), dy, left, right)
        check_form(form, by_autograd(lambda v, f=operation, x=left: f(x, v), right, dy, B))


def test_reflected_product_keeps_its_order() -> None:
    x, w = double(B, 5), double(3, B)
    assert torch.equal(rewrites()[torch.Tensor.__rmatmul__](x, w), w @ x)


LAYOUTS = {
    "time first": ((3, B), Examples(B, 1)),
    "folded": ((3 * B,), Examples(B)),
    "time first, folded": ((3 * B,), Examples(B, inner=True)),
    "folded on axis 1": ((1, 3 * B), Examples(B, 1, inner=True)),
}


@pytest.mark.parametrize(("axes", "examples"), LAYOUTS.values(), ids=LAYOUTS)
def test_examples_in_other_places(axes: tuple[int, ...], examples: Examples) -> None:
    x, w, bias, dy = double(*axes, 5), double(6, 5), double(6), double(*axes, 6)
    check_form(linear_weight(examples, dy, x, w, bias), by_autograd_at(examples, lambda v: F.linear(x, v), w, dy))
    check_form(linear_bias(examples, dy, x, w, bias), by_autograd_at(examples, lambda v: F.linear(x, w, v), bias, dy))
    right = w.t().contiguous()
    check_form(matmul_other(examples, dy, x, right), by_autograd_at(examples, lambda v: x @ v, right, dy))


def test_one_example_without_an_axis() -> None:
    x, w, bias, dy = double(5), double(6, 5), double(6), double(6)
    check_form(linear_weight(Examples(1), dy, x, w, bias), by_autograd(lambda v: F.linear(x, v), w, dy, 1))
    check_form(linear_bias(Examples(1), dy, x, w, bias), by_autograd(lambda v: F.linear(x, w, v), bias, dy, 1))


def test_linear_with_a_vector() -> None:
    x, w, dy = double(B, 3, 5), double(5), double(B, 3)
    check_form(linear_weight(Examples(B), dy, x, w), by_autograd(lambda v: F.linear(x, v), w, dy, B))


def test_linear_with_a_parameter_as_input_and_data_as_weight() -> None:
    """The examples are on the last axis of the output, and are the rows of the second matrix."""
    x, w, dy = double(B, 5), double(6, 5), double(6, B)
    examples = Examples(B, 1)
    check_form(linear_input(examples, dy, w, x), by_autograd_at(examples, lambda v: F.linear(v, x), w, dy))
    check_form(linear_weight(examples, dy, w, x), by_autograd_at(examples, lambda v: F.linear(w, v), x, dy))


@pytest.mark.parametrize("alpha", [1, 0.5])
@pytest.mark.parametrize("beta", [1, -3])
@pytest.mark.parametrize("shape", [(6,), (1,), (1, 6)])
def test_addmm(shape: tuple[int, ...], alpha: float, beta: float) -> None:
    bias, x, w, dy = double(*shape), double(B, 5), double(5, 6), double(B, 6)
    numbers = {"alpha": alpha, "beta": beta}
    check_form(
        addmm_mat2(Examples(B), dy, bias, x, w, **numbers),
        by_autograd(lambda v: torch.addmm(bias, x, v, **numbers), w, dy, B),
    )
    check_form(
        addmm_input(Examples(B), dy, bias, x, w, **numbers),
        by_autograd(lambda v: torch.addmm(v, x, w, **numbers), bias, dy, B),
    )


@pytest.mark.parametrize("operation", [torch.addmm, torch.Tensor.addmm])
def test_addmm_with_the_weight_on_the_left(operation) -> None:
    bias, w, x, dy = double(6, 1), double(6, 5), double(5, B), double(6, B)
    examples = Examples(B, 1)
    form = find_rule(operation, "mat1")(examples, dy, bias, w, x, beta=2, alpha=-3)
    check_form(form, by_autograd_at(examples, lambda v: torch.addmm(bias, v, x, alpha=-3), w, dy))


@pytest.mark.parametrize("examples", [Examples(B), Examples(B, 1)], ids=["first", "on axis 1"])
@pytest.mark.parametrize("operation", [torch.baddbmm, torch.Tensor.baddbmm])
def test_baddbmm(operation, examples: Examples) -> None:
    """A matrix for each example, and a matrix for each head."""
    stack = B if examples.axis == 0 else 3
    named = {"input": double(B, 6), "batch1": double(stack, B, 5), "batch2": double(stack, 5, 6)}
    numbers = {"beta": 0.5, "alpha": -3}
    dy = double(stack, B, 6)
    for operand, value in named.items():
        form = find_rule(operation, operand)(examples, dy, **named, **numbers)
        truth = by_autograd_at(examples, lambda v, k=operand: torch.baddbmm(**(named | {k: v}), **numbers), value, dy)
        check_form(form, truth)


def test_products_summed_over_the_batch_have_no_rule() -> None:
    assert find_rule(torch.addbmm, "batch2") is None
