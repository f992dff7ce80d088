"""Operators of torch that call functions lose gradients inside of modes of torch: they are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_over_rows

from noisette import PerExampleClip, PrivacyError


class Chosen(nn.Module):
    """One of two layers, by the sign of an example."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


class Mapped(Chosen):
    """A layer for each row."""

    def forward(self, x: Tensor) -> Tensor:
        return map_over_rows(lambda row: self.one(row).tanh(), x)  # pyright: ignore


class Scanned(Chosen):
    """Sums along an axis, and a layer behind."""

    def forward(self, x: Tensor) -> Tensor:
        return self.one(scan(lambda carry, row: (carry + row, carry + row), x[:, 0] * 0, x, dim=1)[1])  # pyright: ignore


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, where its compiler is imported
@pytest.mark.parametrize("kind", [Chosen, Mapped, Scanned])
def test_an_operator_that_calls_functions_is_refused_with_a_way_out(kind: type[nn.Module]) -> None:
    clip = PerExampleClip(kind(), 1.0)
    with pytest.raises(PrivacyError, match=r"an operator of torch that calls functions, .* torch\.where"):
        clip.accumulate(lambda model, x: model(x).square().sum(), torch.randn(6, 3))
    assert not any(g.any() for part in clip.pop_sums() for g in part.grads)
