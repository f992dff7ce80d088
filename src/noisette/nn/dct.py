"""Low frequencies of images: fewer inputs, and so less noise, at no privacy cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.protocols import NormBound, Sensitivities


class DctCut(nn.Module):
    """The lowest frequencies of images, by the orthonormal discrete cosine transform; it has no parameters.

    Maps images (b, c, h, w) to (b, c, k, k): coefficients of products of k cosines along the height and k along the
    width, low frequencies first.

    Args:
        k: number of frequencies to keep along each axis.

    Guarantee: an orthogonal projection, hence 1-Lipschitz; it does not depend on the data.
    Source: Ahmed, Natarajan & Rao 1974 (DCT-II).

    Raises:
        ValueError: k is not a positive integer, or is above the height or width of the images.

    >>> DctCut(2)(torch.ones(1, 1, 4, 4)).squeeze().tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        self._check_sides(x.shape[-2:])
        down, across = (_cosines(self.k, side).to(x) for side in x.shape[-2:])
        return down @ x @ across.T

    def bound_forward(self, x: NormBound) -> NormBound:
        """The norm does not increase.

        Raises:
            ValueError: examples are not images of k x k pixels or more.
        """
        self._check_sides(x.shape[-2:])
        return NormBound(x.norm, (*x.shape[:-2], self.k, self.k))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def _check_sides(self, sides: tuple[int, ...]) -> None:
        if len(sides) < 2 or min(sides) < self.k:
            raise ValueError(
                f"expected images of {self.k} x {self.k} pixels or more, got {' x '.join(map(str, sides))}"
            )

    def extra_repr(self) -> str:
        return f"k={self.k}"


def _cosines(k: int, side: int) -> Tensor:
    """The k cosines of lowest frequency on ``side`` pixels, as orthonormal rows (k, side), double precision."""
    frequencies, pixels = torch.arange(k, dtype=torch.float64), torch.arange(side, dtype=torch.float64) + 0.5
    rows = torch.cos(math.pi / side * frequencies[:, None] * pixels) * math.sqrt(2 / side)
    rows[0] /= math.sqrt(2)
    return rows
