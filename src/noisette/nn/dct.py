"""The low frequencies of images: fewer numbers, and so less noise, at no cost in privacy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.protocols import NormBound, Sensitivities


class DctCut(nn.Module):
    """The lowest frequencies of images, by the orthonormal discrete cosine transform; it has no parameters.

    Turns images (b, c, h, w) into (b, c, k, k): coefficients of products of k cosines along the height and k along the
    width, slow ones first.

    Args:
        k: how many frequencies of each axis are kept.

    Guarantee: an orthogonal projection, so neither images nor their differences get longer; nothing in it depends on
    the data.
    Source: Ahmed, Natarajan & Rao 1974 (DCT-II).

    Raises:
        ValueError: k is no whole number above zero; or, when called, above height or width.

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
        """No longer than before.

        Raises:
            ValueError: there is no image of k x k pixels or more.
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
    """The k slowest cosines on so many pixels, as orthonormal rows, double precision."""
    frequencies, places = torch.arange(k, dtype=torch.float64), torch.arange(side, dtype=torch.float64) + 0.5
    rows = torch.cos(math.pi / side * frequencies[:, None] * places) * math.sqrt(2 / side)
    rows[0] /= math.sqrt(2)
    return rows
