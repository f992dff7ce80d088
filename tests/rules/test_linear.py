"""Linear layers and matrix products against autograd, with two to four axes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.core.forms import REWRITES, Examples
from noisette.rules.linear import linear_bias, linear_weight, matmul_other
from rule_oracle import by_autograd, check_form, double

B = 4
AXES = [(), (3,), (2, 3)]


@pytest.mark.parametrize("between", AXES)
def test_linear(between: tuple[int, ...]) -> None:
    x, w, bias, dy = double(B, *between, 5), double(6, 5), double(6), double(B, *between, 6)
    check_form(linear_weight(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, v, bias), w, dy, B))
    check_form(linear_bias(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, w, v), bias, dy, B))


@pytest.mark.parametrize("between", AXES)
def test_matrix_product(between: tuple[int, ...]) -> None:
    x, w, dy = double(B, *between, 5), double(5, 6), double(B, *between, 6)
    check_form(matmul_other(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


def test_reflected_product_keeps_its_order() -> None:
    x, w = double(B, 5), double(3, B)
    assert torch.equal(REWRITES[torch.Tensor.__rmatmul__](x, w), w @ x)


def test_linear_with_a_vector() -> None:
    x, w, dy = double(B, 3, 5), double(5), double(B, 3)
    check_form(linear_weight(Examples(B), dy, x, w), by_autograd(lambda v: F.linear(x, v), w, dy, B))
