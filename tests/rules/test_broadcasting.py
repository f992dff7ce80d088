"""Parameters that are broadcast along any axes, against autograd."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import Examples
from noisette.rules.linear import add_other, unbroadcast_channels
from rule_oracle import by_autograd, check_form, double

B = 4
X = (B, 3, 5)


@pytest.mark.parametrize("shape", [(), (5,), (1,), (3, 5), (3, 1), (1, 5), (1, 3, 5), (1, 1, 1)])
@pytest.mark.parametrize("b", [B, 2, 1])
def test_sums_over_what_was_broadcast(b: int, shape: tuple[int, ...]) -> None:
    """With two examples, the first axis holds two positions of each, with one example four."""
    x, p, dy = double(*X), double(*shape), double(*X)
    check_form(add_other(Examples(b), dy, x, p), by_autograd(lambda v: torch.add(x, v), p, dy, b))


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
def test_channels(places: tuple[int, ...]) -> None:
    x, p, dy = double(B, 6, *places), double(6), double(B, 6, *places)
    aligned = [-1, *[1] * len(places)]
    form = unbroadcast_channels(Examples(B), dy, p)
    check_form(form, by_autograd(lambda v: x + v.view(aligned), p, dy, B))
