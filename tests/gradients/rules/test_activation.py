"""Learned slopes against autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.gradients.rules import Examples
from noisette.gradients.rules.activation import prelu_weight
from rule_oracle import by_autograd, check_form, double

B = 4


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
@pytest.mark.parametrize("slopes", [(), (1,), (6,)])
def test_slopes(places: tuple[int, ...], slopes: tuple[int, ...]) -> None:
    x, w, dy = double(B, 6, *places), double(*slopes), double(B, 6, *places)
    x.view(-1)[:5] = 0
    check_form(prelu_weight(Examples(B), dy, x, w), by_autograd(lambda v: F.prelu(x, v), w, dy, B))


def test_one_slope_for_numbers() -> None:
    x, w, dy = double(B), double(1), double(B)
    check_form(prelu_weight(Examples(B), dy, x, w), by_autograd(lambda v: torch.prelu(x, v), w, dy, B))
