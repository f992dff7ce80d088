"""Products of complex numbers with weights that are real parameters: the gradients take the conjugate factor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import noisette

F = nn.functional


@pytest.mark.parametrize(
    "product",
    [lambda z, w: z @ w.T, F.linear, lambda z, w: torch.einsum("bi,oi->bo", z, w), lambda z, w: (z * w[0]).cumsum(1)],
)
def test_sum_is_that_of_single_examples(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        return product(torch.fft.fft(x), model.weight.to(torch.complex128)).abs().sum()

    model, x = nn.Linear(6, 3, bias=False).double(), torch.randn(5, 6, dtype=torch.float64)
    clip = noisette.PerExampleClip(model, 1e9)
    clip.accumulate(loss, x)
    [clipped] = clip.pop_sums()
    expected = torch.autograd.grad(loss(model, x), model.weight)[0]
    torch.testing.assert_close(clipped.grads[0].double(), expected, rtol=1e-5, atol=1e-5)
