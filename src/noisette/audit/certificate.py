"""What scores prove about a mechanism: bounds on its error rates, and the privacy that no mechanism with them can have.

A test that tells in from out with few errors is itself the proof: a mechanism that is mu-GDP allows no test better than
that between N(0, 1) and N(mu, 1), and one that is (epsilon, delta)-DP none with tpr > e^epsilon fpr + delta.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import beta

from noisette.accounting.accountants.gdp import GdpCurve


def rate_at_most(hits: ArrayLike, trials: int, *, alpha: float) -> np.ndarray:
    """Upper end of the Clopper-Pearson interval: a rate above it gives so few hits with probability ``alpha`` at most.

    >>> round(float(rate_at_most(0, 100, alpha=0.05)), 4)
    0.0295
    """
    missed = trials - np.asarray(hits)
    return np.where(missed > 0, beta.ppf(1 - alpha, trials - missed + 1, np.maximum(missed, 1)), 1.0)


def certified_mu(inside: np.ndarray, outside: np.ndarray, *, threshold: float, alpha: float) -> float:
    """At least so many deviations lie between the scores of those in and of those out; 0 where nothing is proven.

    Both directions are tried, with half of ``alpha`` each: a mechanism leaks as much when its scores have the other
    sign.

    Args:
        inside: scores of canaries that took part.
        outside: scores of those that did not.
        threshold: what tells them apart, chosen without these scores; its negative is that of the other direction.
        alpha: probability with which the answer may be too large.

    Guarantee: for independent scores, a mechanism that is mu-GDP gets a larger answer with probability ``alpha`` at
    most.
    Source: Dong, Roth and Su 2022, section 2 (the trade-off of Gaussian mechanisms); Nasr et al. 2023, section 4.

    >>> apart = np.linspace(-1, 1, 1000)
    >>> round(certified_mu(3 + apart, apart, threshold=1.5, alpha=1e-9), 2)
    4.03
    """
    mu = max(
        _one_way(inside, outside, threshold, alpha / 2),
        _one_way(-inside, -outside, threshold, alpha / 2),
    )
    return max(0.0, mu)


def _one_way(inside: np.ndarray, outside: np.ndarray, threshold: float, alpha: float) -> float:
    wrongly_in = rate_at_most((outside >= threshold).sum(), outside.size, alpha=alpha / 2)
    wrongly_out = rate_at_most((inside < threshold).sum(), inside.size, alpha=alpha / 2)
    mu = -float(ndtri(wrongly_in)) - float(ndtri(wrongly_out))
    return mu if math.isfinite(mu) else -math.inf


def epsilon_of(mu: float, *, delta: float) -> float:
    """Epsilon at this delta of a Gaussian mechanism whose means lie ``mu`` deviations apart.

    >>> round(epsilon_of(1.0, delta=1e-5), 3)
    4.377
    """
    return GdpCurve(mu).epsilon(delta=delta)


def certified_epsilon(inside: np.ndarray, outside: np.ndarray, *, delta: float, alpha: float) -> float:
    """Epsilon that no mechanism with such scores falls short of at this delta, whatever its shape; 0 if none is proven.

    High scores and low ones are tried, for either world. Each time a threshold is chosen on every other score, and the
    rates beyond it are those of the rest.

    Args:
        inside: scores of independent canaries that took part.
        outside: scores of those that did not.
        delta: of the claim.
        alpha: probability with which the answer may be too large.

    Source: Jagielski, Ullman and Oprea 2020, section 4.
    """
    ways = [(sign * one, sign * other) for one, other in ((inside, outside), (outside, inside)) for sign in (1, -1)]
    return max(0.0, *(_one_way_epsilon(one, other, delta, alpha / len(ways)) for one, other in ways))


def _one_way_epsilon(inside: np.ndarray, outside: np.ndarray, delta: float, alpha: float) -> float:
    """From high scores being likelier inside."""
    threshold = _best_threshold(inside[::2], outside[::2], delta, alpha)
    chosen_in, chosen_out = inside[1::2], outside[1::2]
    false = rate_at_most((chosen_out >= threshold).sum(), chosen_out.size, alpha=alpha / 2)
    missed = rate_at_most((chosen_in < threshold).sum(), chosen_in.size, alpha=alpha / 2)
    return float(_log_ratio(1 - missed - delta, false))


def _best_threshold(inside: np.ndarray, outside: np.ndarray, delta: float, alpha: float) -> float:
    """Where these scores prove most, among some of their own."""
    if not inside.size or not outside.size:
        return math.inf
    inside, outside = np.sort(inside), np.sort(outside)
    tried = np.unique(np.concatenate([inside, outside])[:: max(1, inside.size // 200)])
    false = rate_at_most(outside.size - np.searchsorted(outside, tried), outside.size, alpha=alpha / 2)
    missed = rate_at_most(np.searchsorted(inside, tried), inside.size, alpha=alpha / 2)
    return float(tried[np.argmax(_log_ratio(1 - missed - delta, false))])


def _log_ratio(caught: np.ndarray, false: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(caught, math.ulp(0.0)) / false)
