"""Lower bounds on mu and epsilon of a mechanism, from the error rates of a hypothesis test on scores.

A test that distinguishes in from out with few errors is itself the proof: a mu-GDP mechanism allows no test better than
that between N(0, 1) and N(mu, 1), and an (epsilon, delta)-DP mechanism none with tpr > e^epsilon fpr + delta.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import beta

from noisette.accounting.closed_forms import GdpCurve

__all__ = ["Verdict", "certified_epsilon", "certified_mu", "epsilon_of"]

FALSE_ALARM = 1e-9


class Verdict(Enum):
    """The outcome of an audit, worst first."""

    VIOLATION = "violation"
    NOT_AS_DOCUMENTED = "not as documented"
    CONSISTENT = "consistent"


class Audit:
    """A finished audit. Its findings say in words what is wrong; there are none if nothing is refuted."""

    @property
    def findings(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def verdict(self) -> Verdict:
        return Verdict.VIOLATION if self.findings else Verdict.CONSISTENT

    def facts(self) -> dict[str, Any]:
        return {"verdict": self.verdict.value, "findings": list(self.findings)}


def rate_at_most(hits: ArrayLike, trials: int, *, alpha: float) -> np.ndarray:
    """Upper end of the Clopper-Pearson interval: a higher rate gives this few hits with probability at most ``alpha``.

    >>> round(float(rate_at_most(0, 100, alpha=0.05)), 4)
    0.0295
    """
    missed = trials - np.asarray(hits)
    return np.where(missed > 0, beta.ppf(1 - alpha, trials - missed + 1, np.maximum(missed, 1)), 1.0)


def certified_mu(inside: np.ndarray, outside: np.ndarray, *, threshold: float, alpha: float) -> float:
    """Lower bound on the mu of a mechanism: the distance, in deviations, of scores in and out; 0 if none is proven.

    Both directions are tested, each with half of ``alpha``, the probability that the answer is too large. The threshold
    is chosen without these scores.

    Guarantee: for independent scores, a mu-GDP mechanism gets a larger answer with probability ``alpha`` at most.
    Source: Dong, Roth and Su 2022, section 2 (the trade-off of Gaussian mechanisms); Nasr et al. 2023, section 4.

    >>> apart = np.linspace(-1, 1, 1000)
    >>> round(certified_mu(3 + apart, apart, threshold=1.5, alpha=1e-9), 2)
    4.03
    """
    found = [0.0]
    for sign in (1, -1):
        rates = _errors_at_most(sign * inside, sign * outside, threshold, alpha / 2)
        mu = -sum(float(ndtri(rate)) for rate in rates)
        found += [mu] if math.isfinite(mu) else []
    return max(found)


def _errors_at_most(
    inside: np.ndarray, outside: np.ndarray, threshold: float, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of the false-positive and false-negative rates."""
    false_positives = rate_at_most((outside >= threshold).sum(), outside.size, alpha=alpha / 2)
    return false_positives, rate_at_most((inside < threshold).sum(), inside.size, alpha=alpha / 2)


def epsilon_of(mu: float, *, delta: float) -> float:
    """Epsilon at this delta of a Gaussian mechanism whose means are ``mu`` deviations apart."""
    return GdpCurve(mu).epsilon(delta=delta)


def certified_epsilon(inside: np.ndarray, outside: np.ndarray, *, delta: float, alpha: float) -> float:
    """Lower bound on the epsilon at this delta of any mechanism with such independent scores; 0 if none is proven.

    Four tests are made: of high and of low scores, for in and for out. Each chooses its threshold on every other score
    and measures the error rates on the rest. ``alpha`` is the probability that the answer is too large.

    Source: Jagielski, Ullman and Oprea 2020, section 4.
    """
    found = [0.0]
    for one, other in ((sign * a, sign * b) for a, b in ((inside, outside), (outside, inside)) for sign in (1, -1)):
        threshold = _best_threshold(one[::2], other[::2], delta, alpha / 4)
        false_positives, false_negatives = _errors_at_most(one[1::2], other[1::2], threshold, alpha / 4)
        found.append(float(_log_ratio(1 - false_negatives - delta, false_positives)))
    return max(found)


def _best_threshold(inside: np.ndarray, outside: np.ndarray, delta: float, alpha: float) -> float:
    """The threshold with the largest bound on these scores, among about 200 of their values."""
    if not inside.size or not outside.size:
        return math.inf
    inside, outside = np.sort(inside), np.sort(outside)
    tried = np.unique(np.concatenate([inside, outside])[:: max(1, inside.size // 200)])
    false_positives = rate_at_most(outside.size - np.searchsorted(outside, tried), outside.size, alpha=alpha / 2)
    false_negatives = rate_at_most(np.searchsorted(inside, tried), inside.size, alpha=alpha / 2)
    return float(tried[np.argmax(_log_ratio(1 - false_negatives - delta, false_positives))])


def _log_ratio(true_positives: np.ndarray, false_positives: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(true_positives, math.ulp(0.0)) / false_positives)
