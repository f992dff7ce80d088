"""A copy of a weight for each example: its gradient is that of the example."""

from __future__ import annotations

import torch

from noisette.core.forms import Examples
from noisette.core.trace import own_copies, own_copies_weight


def test_copies_are_equal_and_share_memory() -> None:
    weight = torch.randn(2, 3)
    copies = own_copies(weight, 4)
    assert torch.equal(copies, torch.stack([weight] * 4))
    assert copies.data_ptr() == weight.data_ptr()
    assert own_copies(weight[0, 0], 4).shape == (4,)


def test_the_gradient_of_each_copy_is_that_of_its_example() -> None:
    weight, x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    copies = own_copies(weight, 4)
    y = (torch.einsum("boi,bi->bo", copies, x).sin()).sum()
    [dy] = torch.autograd.grad(y, [copies])
    found = own_copies_weight(Examples(4), dy, weight, 4)
    for i in range(4):
        [alone] = torch.autograd.grad((weight @ x[i]).sin().sum(), [weight])
        torch.testing.assert_close(found.explicit()[i], alone)
