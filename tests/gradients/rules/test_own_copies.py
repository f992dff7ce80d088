"""A copy of a weight for each example: its gradient is the per-example gradient of any operation."""

from __future__ import annotations

import torch

from noisette.gradients.rules import Examples
from noisette.gradients.rules.own_copies import own_copies, own_copies_weight


def test_gradients_of_the_copies_are_those_of_the_examples() -> None:
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    copies = own_copies(weight, 5)
    output = torch.bmm(x, copies).sin().sum((1, 2))
    [dy] = torch.autograd.grad(output.sum(), [copies])
    form = own_copies_weight(Examples(5), dy, weight, 5)
    for i in range(5):
        [own] = torch.autograd.grad((x[i] @ weight).sin().sum(), [weight])
        torch.testing.assert_close(form.explicit()[i], own)


def test_the_copies_take_no_memory() -> None:
    weight = torch.randn(4, 3)
    assert own_copies(weight, 1000).untyped_storage().nbytes() == weight.untyped_storage().nbytes()
