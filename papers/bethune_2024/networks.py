"""Networks of the study, to be named in recipes: with constrained weights and, for tables, with unconstrained ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette.nn import AppendOne, DctCut
from noisette.nn.lipschitz import GroupSort2, LayerCentering, LipschitzConcat, SphereInput
from noisette.nn.models import FixedFeatures, Shape, lipschitz_mixer
from noisette.nn.models.on_features import linear_head

_COSINES = 512
_BREADTH = 0.35  # standard deviation of the frequencies, for columns of deviation 1
_CUT, _COSINES_OF_IMAGES, _BREADTH_ON_THE_SPHERE = 8, 2000, 1.7


class SignedRoots(nn.Module):
    """The square root of each number's size, with its sign: small numbers of a long column are told apart."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt()


class RandomCosines(nn.Module):
    """Cosines of random combinations of the columns: ``cos(x @ frequencies + phases)``; nothing is trained.

    Source: Rahimi & Recht 2007, whose sums of such cosines approximate a Gaussian kernel.
    """

    def __init__(self, columns: int, *, cosines: int = _COSINES, breadth: float = _BREADTH) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", breadth * torch.randn(columns, cosines))
        self.register_buffer("phases", 2 * math.pi * torch.rand(cosines))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x @ self.frequencies + self.phases)


def frequency_cosines(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on random cosines of the 8 x 8 lowest frequencies of each channel of an image, on the sphere."""
    fixed = RandomCosines(shape[0] * _CUT**2, cosines=_COSINES_OF_IMAGES, breadth=_BREADTH_ON_THE_SPHERE)
    frequencies = nn.Sequential(LayerCentering((1, 2, 3)), DctCut(_CUT), nn.Flatten(), SphereInput(1.0))
    return FixedFeatures(nn.Sequential(frequencies, fixed), linear_head(_COSINES_OF_IMAGES, classes))


def cosines(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on random cosines of a row."""
    return FixedFeatures(RandomCosines(shape[0]), linear_head(_COSINES, classes))


def roots(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on the signed square roots of a row and a constant."""
    return FixedFeatures(_roots(), linear_head(shape[0] + 1, classes))


def free_cosines(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`cosines` with unconstrained weights."""
    return FixedFeatures(RandomCosines(shape[0]), _free_head(_COSINES, classes))


def free_roots(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`roots` with unconstrained weights."""
    return FixedFeatures(_roots(), _free_head(shape[0] + 1, classes))


def narrow_mixer(shape: Shape, classes: int) -> FixedFeatures:
    """The mixer with half its channels, for a processor."""
    return lipschitz_mixer(shape, classes, channels=32)


def free_narrow(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`noisette.nn.models.lipschitz_rows` with unconstrained weights."""
    features, units = shape[0] + 1, 64
    hidden = nn.Sequential(nn.Linear(features, units, bias=False), GroupSort2())
    both = LipschitzConcat([nn.Identity(), hidden])
    return FixedFeatures(
        AppendOne(), nn.Sequential(SphereInput(1.0), both, nn.Linear(features + units, classes, bias=False))
    )


def named(name: str) -> str:
    """Return the name of one of these networks in a recipe."""
    return f"{__name__}:{name}"


def _roots() -> nn.Sequential:
    return nn.Sequential(SignedRoots(), AppendOne())


def _free_head(numbers: int, classes: int) -> nn.Sequential:
    linear = nn.Linear(numbers, classes, bias=False)
    nn.init.zeros_(linear.weight)
    return nn.Sequential(SphereInput(1.0), linear)
