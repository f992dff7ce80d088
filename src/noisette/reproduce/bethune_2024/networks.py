"""Networks of the tabular study, for recipes to name: orthogonal ones, and the same widths with free weights."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

from noisette.models import FixedFeatures, Shape, lipschitz_rows
from noisette.nn import AppendOne
from noisette.nn.lipschitz import GroupSort2, SphereInput


def free_rows(shape: Shape, classes: int, *, units: tuple[int, ...]) -> FixedFeatures:
    """:func:`noisette.models.lipschitz_rows` with ordinary linear layers, for clipping."""
    layers = [nn.Linear(*widths, bias=False) for widths in pairwise([shape[0] + 1, *units, classes])]
    hidden = [part for layer in layers[:-1] for part in (layer, GroupSort2())]
    return FixedFeatures(AppendOne(), nn.Sequential(SphereInput(1.0), *hidden, layers[-1]))


linear, wide, deep = (partial(lipschitz_rows, units=units) for units in ((), (64,), (64, 64)))
free_linear, free_deep = (partial(free_rows, units=units) for units in ((), (64, 64)))


def named(name: str) -> str:
    """One of these as a recipe names it."""
    return f"{__name__}:{name}"
