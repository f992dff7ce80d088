"""Lower bounds on mu and epsilon from the error rates of a test on scores, and a stated privacy cost by simulation.

A test that distinguishes in from out with few errors is itself the proof: a mu-GDP mechanism allows no test better than
that between N(0, 1) and N(mu, 1), and an (epsilon, delta)-DP mechanism none with tpr > e^epsilon fpr + delta.

A cost is checked by drawing the releases, with no code of the accountants. The privacy loss L = ln(P/Q) of a release
has the distribution P with the record and Q without it, or the other way round; delta at epsilon is the mean of
max(0, 1 - exp(epsilon - L)) under P. Where it is small, L is drawn from the density in proportion to P exp(theta L)
instead, and each draw is weighted by the ratio of the densities. That weighted mean is one of numbers between 0 and a
known bound, so an exact confidence interval follows from a count.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from noisette import errors as checks
from noisette.accounting import events as kinds
from noisette.accounting.closed_forms import GdpCurve
from noisette.accounting.events import Event, Events

__all__ = ["CostAudit", "Verdict", "audit_cost", "certified_epsilon", "certified_mu", "epsilon_of"]

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
    inside: np.ndarray, outside: np.ndarray, thresholds: ArrayLike, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of the false-positive and false-negative rates, for each threshold."""
    below_in, below_out = (np.searchsorted(np.sort(scores), thresholds) for scores in (inside, outside))
    false_positives = rate_at_most(outside.size - below_out, outside.size, alpha=alpha / 2)
    return false_positives, rate_at_most(below_in, inside.size, alpha=alpha / 2)


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
        found.append(float(_epsilons(one[1::2], other[1::2], threshold, delta, alpha / 4)))
    return max(found)


def _best_threshold(inside: np.ndarray, outside: np.ndarray, delta: float, alpha: float) -> float:
    """The threshold with the largest bound on these scores, among about 200 of their values."""
    if not inside.size or not outside.size:
        return math.inf
    tried = np.unique(np.concatenate([np.sort(inside), np.sort(outside)])[:: max(1, inside.size // 200)])
    return float(tried[np.argmax(_epsilons(inside, outside, tried, delta, alpha))])


def _epsilons(inside: np.ndarray, outside: np.ndarray, thresholds: ArrayLike, delta: float, alpha: float) -> np.ndarray:
    """What the errors at each threshold prove."""
    false_positives, false_negatives = _errors_at_most(inside, outside, thresholds, alpha)
    return np.log(np.maximum(1 - false_negatives - delta, math.ulp(0.0)) / false_positives)


# What is observed of a release is its cell, of so many deviations of the noise, up to a distance from both means. Who
# sees less learns less, so delta is never too large by this; the width costs a share of 1e-4 of epsilon.
_WIDTH, _REACH, _FARTHEST = 0.05, 10.0, 30.0
_TILTS = np.unique(np.round(np.concatenate([[0], np.geomspace(1, 4096, 60)])).astype(int))


@dataclass(frozen=True)
class CostAudit(Audit):
    """Confidence limits of delta at ``epsilon``, ``least`` and ``most``, beside the delta that is stated.

    ``left_out`` are the kinds of releases that were not simulated. What is released without them costs no more, so
    ``least`` is a lower limit for all.
    """

    epsilon: float
    delta: float
    least: float
    most: float
    left_out: tuple[str, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        if self.least <= self.delta:
            return ()
        return (f"at epsilon={self.epsilon:.4g} delta is {self.least:.3g} or more; {self.delta:g} is stated",)

    def facts(self) -> dict[str, Any]:
        return super().facts() | asdict(self)


def audit_cost(
    events: Events, *, epsilon: float, delta: float, samples: int = 20_000, false_alarm: float = FALSE_ALARM
) -> CostAudit:
    """Check by simulation that releases cost no more than (epsilon, delta).

    A record is removed, and it is added. ``samples`` is the number of simulated runs, and ``false_alarm`` the
    probability that a cost is refuted that is not too small. Balls-in-bins batches are not simulated.

    Guarantee: the limits hold for the mechanism that each event declares, against an attacker who knows all other
    records, and of truncated batches which ones were full.
    Source: Wang et al. 2023, "A Randomized Approach to Tight Privacy Accounting", for delta by importance sampling.

    Raises:
        ValueError: a number outside its domain.

    >>> from noisette import PoissonGaussian
    >>> audit_cost({PoissonGaussian(0.01, 1.3): 6000}, epsilon=2.97, delta=1e-5).verdict
    <Verdict.CONSISTENT: 'consistent'>
    """
    checks.all_of(
        lambda: checks.not_negative(epsilon=epsilon),
        lambda: checks.open_fraction(delta=delta, false_alarm=false_alarm),
        lambda: checks.count(samples=samples),
    )
    random = np.random.default_rng()
    limits, left_out = [(0.0, 0.0)], set[str]()
    for removed in (True, False):
        found = {event: _losses(event, times, removed) for event, times in events.items()}
        left_out = {event.mechanism for event, one in found.items() if one is None}
        losses = [one for one in found.values() if one is not None]
        limits.append(_limits(losses, epsilon, samples, false_alarm / 2, random))
    least, most = (max(ends) for ends in zip(*limits, strict=True))
    return CostAudit(epsilon, delta, least, most, tuple(sorted(left_out)))


class _Cells:
    """Losses of releases of which an attacker sees the cell, of probability ``p`` or ``q``."""

    def __init__(self, p: np.ndarray, q: np.ndarray, times: int) -> None:
        known = (p > 0) & (q > 0)
        self._log_p, self._loss = np.log(p[known]), np.log(p[known]) - np.log(q[known])
        self._times = times

    def log_mean(self, tilt: int) -> float:
        return self._times * float(np.logaddexp.reduce(self._log_p + tilt * self._loss))

    def sums(self, tilt: int, samples: int, random: np.random.Generator) -> np.ndarray:
        """Sums of all losses, of density in proportion to that under P times exp(tilt * sum), (samples,)."""
        log_weights = self._log_p + tilt * self._loss
        weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        likeliest = np.argsort(-weights)  # of the last cells there are no draws left to be counted
        chosen, loss = weights[likeliest] / weights.sum(), self._loss[likeliest]
        blocks = [min(1000, samples - k) for k in range(0, samples, 1000)]
        return np.concatenate([random.multinomial(self._times, chosen, size=n) @ loss for n in blocks])


def _limits(
    losses: Sequence[_Cells], epsilon: float, samples: int, alpha: float, random: np.random.Generator
) -> tuple[float, float]:
    """Confidence limits of delta, each of which fails with probability ``alpha``."""
    # With K = ln of the mean of exp(tilt L), a weighted draw is exp(K - tilt L) (1 - exp(epsilon - L)) where L exceeds
    # epsilon, largest where exp(epsilon - L) = tilt / (1 + tilt). Over that bound it is the probability of a coin.
    exponents = [sum(one.log_mean(tilt) for one in losses) - tilt * epsilon for tilt in _TILTS.tolist()]
    tilt, exponent = int(_TILTS[np.argmin(exponents)]), min(exponents)
    total = sum((one.sums(tilt, samples, random) for one in losses), np.zeros(samples))
    above = np.maximum(total - epsilon, 0)
    log_top = tilt * math.log(tilt / (1 + tilt)) - math.log(1 + tilt) if tilt else 0.0
    heads = int((random.random(samples) < np.exp(-tilt * above - log_top) * -np.expm1(-above)).sum())
    scale = math.exp(exponent + log_top)
    least = 1 - float(rate_at_most(samples - heads, samples, alpha=alpha))
    return scale * least, min(1.0, scale * float(rate_at_most(heads, samples, alpha=alpha)))


def _losses(event: Event, times: int, removed: bool) -> _Cells | None:
    """The losses of so many releases; ``None`` for a kind that is not simulated."""
    match event:
        case kinds.BandedGaussian():
            return _losses(event.of_round, -(-times // event.bands), removed)
        case kinds.Gaussian() | kinds.PoissonGaussian():
            pair = _mixture(event.sampling_rate, 1, 1 / event.noise_multiplier)
        case kinds.OfSeveral():
            pair = _mixture(event.sampling_rate, event.records, 1 / event.noise_multiplier)
        case kinds.FixedSizeGaussian():  # where all other records are the one that replaces it
            pair = _mixture(event.batch_size / event.size, 1, 2 / event.noise_multiplier)
        case kinds.TruncatedPoissonGaussian():  # a record of a full batch displaces another
            drawn = np.arange(event.largest_batch, event.most_records + 1)  # others, of which so many are kept
            often = binom.pmf(drawn, event.most_records, event.sampling_rate)
            full, kept = float(often.sum()), float(often @ (event.largest_batch / (drawn + 1)))
            rate_if_full = event.sampling_rate * kept / full if full else 0.0
            grows = _mixture(event.sampling_rate, 1, 1 / event.noise_multiplier)
            exchanges = _mixture(rate_if_full, 1, 2 / event.noise_multiplier)
            pair = np.concatenate([(1 - full) * grows, full * exchanges], axis=1)
        case _:
            return None
    p, q = pair if removed else pair[::-1]
    return _Cells(p, q, times)


def _mixture(rate: float, records: int, shift: float) -> np.ndarray:
    """Probabilities of the cells of a release, (2, cells): with records, each with this probability, and without."""
    shift = min(shift, _FARTHEST / records)  # with more noise than there is
    edges = np.arange(-_REACH, _REACH + records * shift, _WIDTH)
    edges[[0, -1]] = -np.inf, np.inf

    def of_cells(mean: float) -> np.ndarray:
        left, right = edges[:-1] - mean, edges[1:] - mean
        return np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))  # the nearer tail

    inside = np.arange(records + 1)
    weights = binom.pmf(inside, records, rate)
    return np.stack([sum(w * of_cells(k * shift) for k, w in zip(inside, weights, strict=True)), of_cells(0.0)])
