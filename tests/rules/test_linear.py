"""Linear layers and matrix products against autograd, with two to four axes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.rules import find_rule
from noisette.rules._examples import Examples
from noisette.rules.linear import addmm_bias, addmm_weight, linear_bias, linear_weight, matmul_right
from rule_oracle import by_autograd, check_form, double

B = 4
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
    check_form(matmul_right(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


@pytest.mark.parametrize("between", AXES)
def test_matrix_product_with_a_vector(between: tuple[int, ...]) -> None:
    x, w, dy = double(B, *between, 5), double(5), double(B, *between)
    check_form(matmul_right(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


def test_matrix_product_with_a_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="3 axes"):
        matmul_right(B, double(B, 2, 3, 6), double(B, 2, 3, 5), double(2, 5, 6))


@pytest.mark.parametrize("alpha", [1, 0.5])
@pytest.mark.parametrize("beta", [1, -3])
@pytest.mark.parametrize("shape", [(6,), (1,), (1, 6)])
def test_addmm(shape: tuple[int, ...], alpha: float, beta: float) -> None:
    bias, x, w, dy = double(*shape), double(B, 5), double(5, 6), double(B, 6)
    numbers = {"alpha": alpha, "beta": beta}
    check_form(
        addmm_weight(Examples(B), dy, bias, x, w, **numbers),
        by_autograd(lambda v: torch.addmm(bias, x, v, **numbers), w, dy, B),
    )
    check_form(
        addmm_bias(Examples(B), dy, bias, x, w, **numbers),
        by_autograd(lambda v: torch.addmm(v, x, w, **numbers), bias, dy, B),
    )


def test_weights_on_the_left_have_no_rule() -> None:
    assert find_rule(F.linear, "input") is None
    assert find_rule(torch.matmul, "input") is None
    assert find_rule(torch.addmm, "mat1") is None
