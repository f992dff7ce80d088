"""Networks of the tabular study, to be named in recipes: with orthogonal and with unconstrained weights."""

from __future__ import annotations

from torch import nn

from noisette.models import FixedFeatures, Shape
from noisette.models.lipschitz import linear_head
from noisette.nn import AppendOne
from noisette.nn.lipschitz import GroupSort2, LipschitzConcat, SpectralLinear, SphereInput

_UNITS = 512  # of a fixed layer


def linear(shape: Shape, classes: int) -> FixedFeatures:
    """One orthogonal layer."""
    features = shape[0] + 1
    return FixedFeatures(AppendOne(), nn.Sequential(SphereInput(1.0), SpectralLinear(features, classes)))


def fixed_pairs(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on a row and on sorted pairs of a fixed, random orthogonal layer."""
    features = _fixed_features(shape)
    return FixedFeatures(features, linear_head(shape[0] + 1 + _UNITS, classes))


def free_linear(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`linear` with unconstrained weights."""
    return FixedFeatures(AppendOne(), nn.Sequential(SphereInput(1.0), nn.Linear(shape[0] + 1, classes, bias=False)))


def free_fixed_pairs(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`fixed_pairs` with unconstrained weights."""
    last = nn.Linear(shape[0] + 1 + _UNITS, classes, bias=False)
    nn.init.zeros_(last.weight)
    return FixedFeatures(_fixed_features(shape), nn.Sequential(SphereInput(1.0), last))


def free_narrow(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`noisette.models.lipschitz_rows` with unconstrained weights."""
    features, units = shape[0] + 1, 64
    hidden = nn.Sequential(nn.Linear(features, units, bias=False), GroupSort2())
    both = LipschitzConcat([nn.Identity(), hidden])
    return FixedFeatures(
        AppendOne(), nn.Sequential(SphereInput(1.0), both, nn.Linear(features + units, classes, bias=False))
    )


def named(name: str) -> str:
    """Return the name of one of these networks in a recipe."""
    return f"{__name__}:{name}"


def _fixed_features(shape: Shape) -> nn.Sequential:
    fixed = SpectralLinear(shape[0] + 1, _UNITS).requires_grad_(False)
    pairs = nn.Sequential(fixed, GroupSort2())
    return nn.Sequential(AppendOne(), SphereInput(1.0), LipschitzConcat([nn.Identity(), pairs]))
