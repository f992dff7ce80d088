"""Models and records for audits: the gradient of each canary has an axis of its own, and exceeds every bound.

Canary k is record k. Its gradient has the same value at element k of every trained parameter, and zeros elsewhere; the
gradients of ordinary records have other elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from noisette.nn import PublicBatchNorm, use_public_batch
from noisette.nn.lipschitz import BoundedInput, SpectralLinear

# Norm of a canary's gradient: above every clipping norm, and its square is far below the limit of single precision.
LENGTH = 1000.0
_ELSEWHERE = 8  # axes of the ordinary records


class CanaryModel(Protocol):
    """A model, and records that contain canaries."""

    @property
    def model(self) -> nn.Module:
        """Trained on the records."""
        ...

    @property
    def records(self) -> Tensor:
        """The canaries, then ordinary records, (records, ...)."""
        ...

    @property
    def canaries(self) -> int:
        """The number of records that are canaries."""
        ...

    def losses(self, output: Tensor) -> Tensor:
        """One loss for each row of the model's output."""
        ...


def _records(canaries: int, ordinary: int, widths: tuple[int, ...]) -> Tensor:
    """Canaries on their axes in each part of ``widths`` elements, ordinary records on the axes behind them."""
    parts = []
    for width in widths:
        part = torch.zeros(canaries + ordinary, width)
        part[:canaries, :canaries] = LENGTH * torch.eye(canaries)
        part[canaries:, canaries:] = torch.randn(ordinary, width - canaries)
        parts.append(part)
    return torch.cat(parts, 1)


class _TwoLayers(nn.Module):
    """The gradient of an example's output is the example itself, split over two parameters of different size."""

    def __init__(self, widths: tuple[int, int]) -> None:
        super().__init__()
        self.cut = widths[0]
        self.a, self.b = (nn.Linear(width, 1, bias=False) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[:, : self.cut]) + self.b(x[:, self.cut :])


class Axes:
    """For every clipping rule: two linear layers, whose gradient is the record."""

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        widths = canaries + _ELSEWHERE, canaries + 4 * _ELSEWHERE + 1
        self.canaries = canaries
        self.model = _TwoLayers(widths)
        self.records = _records(canaries, ordinary, widths)

    def losses(self, output: Tensor) -> Tensor:
        return output.squeeze(1)


class BehindPublicNorm:
    """For models with public batch norm: a linear layer whose output is normalised by public statistics.

    The public examples are on the axes of the ordinary records, so they change a canary's gradient on those axes only.
    """

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        width = canaries + _ELSEWHERE
        self.canaries = canaries
        self.records = _records(canaries, ordinary, (width,))
        layer = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(layer.weight[:, :canaries].detach())
        self.model = nn.Sequential(layer, PublicBatchNorm(1, affine=False))
        public = torch.zeros(64, width)
        public[:, canaries:] = torch.randn(64, _ELSEWHERE)
        use_public_batch(self.model, public)

    def losses(self, output: Tensor) -> Tensor:
        return LENGTH * output.squeeze(1)


class LipschitzAxes:
    """For Lipschitz bounds: a 1-Lipschitz network on inputs of norm one.

    The gradient of an example is that of its score times its input, so its norm equals the bound, whatever that is.
    """

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        width = canaries + _ELSEWHERE
        self.canaries = canaries
        self.input_shape = (width,)
        self.records = _records(canaries, ordinary, (width,))
        self.model = nn.Sequential(BoundedInput(1.0), SpectralLinear(width, 1))

    def losses(self, output: Tensor) -> Tensor:
        return LENGTH * output.squeeze(1)


class _SignedRows(nn.Module):
    """Row x of a table; for x beyond the table, minus the row at the remainder."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table.num_embeddings
        return self.table(x % rows).squeeze(1) * torch.where(x < rows, 1.0, -1.0)


class Rows:
    """For audits with many thousands of canaries: a table in which each record changes one row.

    Args:
        canaries: number of canaries; each has an axis of its own.
        crowd: ordinary records on the axis of each canary, which move it in the opposite direction. With them an audit
            can distinguish a sampler that shuffles, so that each record is in one batch per epoch, from Poisson
            sampling.
    """

    def __init__(self, canaries: int, crowd: int = 0) -> None:
        self.canaries = canaries
        self.model = _SignedRows(canaries)
        self.records = torch.cat([torch.arange(canaries), torch.arange(canaries, 2 * canaries).repeat(crowd)])

    def losses(self, output: Tensor) -> Tensor:
        return LENGTH * output


@dataclass(frozen=True)
class Canaries:
    """Records for a training step of your own. At a linear model without bias the gradient of a record is the record.

    >>> canaries = Canaries(count=3, ordinary=2)
    >>> canaries.records.shape, canaries.model()
    (torch.Size([5, 11]), Linear(in_features=11, out_features=1, bias=False))
    """

    count: int = 512
    ordinary: int = 100

    @property
    def width(self) -> int:
        """The number of elements of a record, and of the model's gradient."""
        return self.count + _ELSEWHERE

    @property
    def records(self) -> Tensor:
        """The canaries, then ordinary records, (count + ordinary, width); drawn anew on each access."""
        return _records(self.count, self.ordinary, (self.width,))

    def model(self) -> nn.Linear:
        """A linear model: with its output as the loss, the gradient of an example is the example."""
        return nn.Linear(self.width, 1, bias=False)
