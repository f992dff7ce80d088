"""A privacy loss from Rényi divergences alone, for releases of which nothing else is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from noisette.accounting.accountants.privacy_loss.distribution import Directions, LossDistribution

# The values of the privacy loss on each side of 0.
VALUES = 600


def renyi_directions(delta: Callable[[float], float], epsilon: Callable[[float], float], tail: float) -> Directions:
    """The worst privacy loss of a release with these bounds on delta, which hold in both directions.

    As a function of exp(epsilon) the exact delta is convex, so it is not above the convex hull of bounds at single
    points; a distribution on these points has that hull as its delta. At epsilons below 0 the bound is that of the
    other direction: delta(-e) = 1 - exp(-e) (1 - delta(e)).

    Args:
        delta: an upper bound on delta at an epsilon above 0.
        epsilon: an upper bound on epsilon at a delta.
        tail: the most probability that may count as an infinite loss.

    Source: Zhu, Dong and Wang 2022, Proposition 7.
    """
    largest = min(epsilon(max(tail, 1e-300)), 700.0)
    above = largest * np.linspace(0, 1, VALUES + 1)[1:] ** 2  # denser near 0
    deltas = np.array([delta(float(e)) for e in above])
    x = np.concatenate(([0.0], np.exp(-above[::-1]), np.exp(above)))
    bounds = np.concatenate(([1.0], 1 - np.exp(-above[::-1]) * (1 - deltas[::-1]), deltas))
    hull = _convex_hull(x, np.minimum(bounds, 1.0))
    x, bounds = x[hull], bounds[hull]
    slopes = np.append(np.diff(bounds) / np.diff(x), 0.0)
    masses = x[1:] * np.diff(slopes) * (1 + 1e-9)  # more than rounding can take off
    kept = masses > 0
    either = LossDistribution(np.log(x[1:])[kept], masses[kept], float(bounds[-1]) * (1 + 1e-9))
    return Directions(either, either)


def _convex_hull(x: np.ndarray, y: np.ndarray) -> list[int]:
    """The points of the lower convex hull, from left to right (Andrew's monotone chain)."""
    hull: list[int] = []
    for k in range(len(x)):
        while len(hull) > 1:
            i, j = hull[-2], hull[-1]
            if (y[j] - y[i]) * (x[k] - x[i]) < (y[k] - y[i]) * (x[j] - x[i]):
                break
            hull.pop()
        hull.append(k)
    return hull
