"""Rényi differential privacy, and the moments accountant."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from noisette.accounting import events as kinds
from noisette.accounting import privacy_loss
from noisette.accounting.events import Event, Events, Sampled, Supported
from noisette.accounting.interface import composed_events, is_unbounded, resolved_noise, unsupported
from noisette.accounting.privacy_loss import LOG_ROUNDING, LossDistribution, Mixture, log_binomial
from noisette.errors import not_negative, open_fraction, positive

_LARGE = (80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
ORDERS = (*(tenth / 10 for tenth in range(11, 110)), *range(11, 65), *_LARGE)  # below 1.5 only for large groups
# Declared amounts have divergences that only grow with the order: a small one has its best order far above.
HIGH_ORDERS = (*ORDERS, *(2**power for power in range(11, 40)))
# The divergence of noise of this size, 5e-15 * order, is added to each: rounding cannot turn a tiny one into zero.
ROUNDING = 1e7


def valid_orders(orders: Iterable[float], *, above: int) -> tuple[float, ...]:
    """The orders of an accountant; an error if there is none, or one is not a finite number above the limit."""
    orders = tuple(orders)
    for order in orders:
        positive(order=order)
    if not orders or min(orders) <= above:
        raise ValueError(f"expected at least one order, each above {above}, got {orders}")
    return orders


def conversion(orders: np.ndarray, log_deltas: np.ndarray | float) -> np.ndarray:
    """What is added to a divergence to give epsilon at delta: Canonne, Kamath and Steinke 2020, Proposition 12."""
    return np.log1p(-1 / orders) - (log_deltas + np.log(orders)) / (orders - 1)


@dataclass(frozen=True, eq=False)
class RdpCurve:
    """The Rényi divergences of all events together, one for each order.

    They are converted by Proposition 12 of Canonne, Kamath and Steinke 2020, or if not ``improved`` by Proposition 3 of
    Mironov 2017. ``shares`` are parts of delta, for each order, where the best order must not be chosen for nothing.
    """

    orders: np.ndarray
    divergences: np.ndarray
    improved: bool = True
    shares: np.ndarray | float = 1.0

    def epsilon(self, *, delta: float) -> float:
        open_fraction(delta=delta)
        if not self.divergences.any() or delta > self._total_variation:
            return 0.0
        logs = math.log(delta) + np.log(self.shares)
        added = conversion(self.orders, logs) if self.improved else -logs / (self.orders - 1)
        return max(0.0, float(np.min(self.divergences + added)))

    def delta(self, *, epsilon: float) -> float:
        not_negative(epsilon=epsilon)
        if not self.divergences.any():
            return 0.0
        logs = (self.orders - 1) * (self.divergences - epsilon) - np.log(self.shares)
        if self.improved:
            logs += (self.orders - 1) * np.log1p(-1 / self.orders) - np.log(self.orders)
        return min(self._total_variation, math.exp(min(0.0, float(np.min(logs)))))

    @property
    def _total_variation(self) -> float:
        """A bound on delta at epsilon 0, from the divergence of order 1, which is less (Bretagnolle and Huber 1979)."""
        least = float(np.min(self.divergences))
        return math.sqrt(-math.expm1(-least)) if self.improved and isinstance(self.shares, float) else 1.0


@dataclass(frozen=True)
class RdpAccountant:
    """Adds up Rényi divergences: quick, supports most events, somewhat looser than :class:`PldAccountant`.

    A pass of balls in bins counts as one release over all records, which is more than it costs. Batches of fixed size
    count at most twice what the Gaussian needs. Each of the ``orders`` is above 1.
    Source: Mironov, Talwar and Zhang 2019 (Poisson batches); Papernot and Steinke 2022, Theorems 2, 6 (repeated runs).

    >>> from noisette.accounting.events import PoissonGaussian
    >>> round(RdpAccountant().compose({PoissonGaussian(0.01, 4.0): 10_000}).epsilon(delta=1e-5), 4)
    1.0355
    """

    name = "rdp"
    description = "Rényi differential privacy"
    supports_sampling = True

    orders: Sequence[float] = ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", valid_orders(self.orders, above=1))

    def compose(self, events: Events) -> RdpCurve:
        orders = tuple(self.orders)
        total = np.zeros(len(orders))
        for event, times in composed_events(events).items():
            total += times * _released(event, orders)
        return RdpCurve(np.array(orders), total)


def _released(event: Event, orders: tuple[float, ...]) -> np.ndarray:
    return _divergences(event, orders) + np.array(orders) / (2 * ROUNDING**2)


@lru_cache(maxsize=16384)
def _divergences(event: Event, orders: tuple[float, ...]) -> np.ndarray:
    has_delta = isinstance(event, kinds.DpAmount) and event.delta > 0
    if has_delta or isinstance(event, kinds.ReplacedPoissonGaussian) or not isinstance(event, Supported):
        raise unsupported(event, RdpAccountant.name)
    a = np.array(orders)
    if is_unbounded(event):
        return np.full(len(a), math.inf)
    match event:
        case kinds.Gaussian() | kinds.PoissonGaussian():
            return _sampled_divergences(event, 1, a)
        case kinds.GroupPrivacy() | kinds.UserLevel():
            return _sampled_divergences(event.event, event.records, a)
        case kinds.TruncatedPoissonGaussian():
            return _truncated_divergences(event, orders)
        case kinds.BallsInBinsGaussian() | kinds.DiscreteGaussian():
            # Canonne, Kamath and Steinke 2020, Theorem 4; a mixture of releases over all records costs at most one
            return a / (2 * resolved_noise(event.noise_multiplier) ** 2)
        case kinds.ZcdpAmount():
            return event.rho * a
        case kinds.Laplace():  # Mironov 2017, Proposition 6
            loss, largest = 1 / event.noise_multiplier, np.log(2 * a - 1)
            return np.logaddexp(np.log(a) - largest + (a - 1) * loss, np.log(a - 1) - largest - a * loss) / (a - 1)
        case kinds.DpAmount():  # randomised response is the worst mechanism of its epsilon
            loss, log_likely = event.epsilon, -math.log1p(math.exp(-event.epsilon))
            return np.logaddexp(log_likely + (a - 1) * loss, log_likely - loss - (a - 1) * loss) / (a - 1)
        case kinds.FixedSizeGaussian():
            return _replaced_divergences(event, a)
        case _:
            assert isinstance(event, kinds.RepeatAndSelect)
            of_run = np.sum([times * _released(release, orders) for release, times in event.run], axis=0)
            return of_best(a, of_run, event.mean, event.shape)


def _sampled_divergences(release: Sampled, records: int, orders: np.ndarray) -> np.ndarray:
    if release.sampling_rate == 1:
        return orders * (records / resolved_noise(release.noise_multiplier)) ** 2 / 2
    if records == 1:
        return log_moments(release, orders - 1) / (orders - 1)
    return Mixture.of(kinds.GroupPrivacy(release, records)).divergences(orders)


def _truncated_divergences(event: kinds.TruncatedPoissonGaussian, orders: tuple[float, ...]) -> np.ndarray:
    """Those of a mixture, as anyone may see whether the batch is full; the largest of all cases."""
    above = np.array(orders) - 1
    found = np.full(len(orders), -math.inf)
    for ends in pairwise(privacy_loss.ends_of_cases(event)):
        parts = privacy_loss.TruncatedCase.of(event, *ends).parts
        logs = [math.log(often) + above * _divergences(release, orders) for often, release in parts]
        found = np.maximum(found, np.logaddexp.reduce(logs))
    return found / above


def _replaced_divergences(event: kinds.FixedSizeGaussian, orders: np.ndarray) -> np.ndarray:
    """Those of the pair of :func:`replaced_loss`, of whose two sides each is less than its whole.

    With the density ratio r of the mixture and the Gaussian, exp((order - 1) * divergence) is 1 plus the mean of
    r^order + r^(1 - order) - 1 - r over the Gaussian where r > 1. The means of r^order - 1 - order * (r - 1) and of
    r^(1 - order) - r - order * (1 - r), which add up to that, are not negative elsewhere, so whole means are a bound.
    """
    release = privacy_loss.pair_of_replaced(event)
    in_every_batch = orders / (2 * release.noise_multiplier**2)
    if is_unbounded(release):
        return np.full(len(orders), math.inf)
    if release.sampling_rate == 1:
        return in_every_batch
    mixture = Mixture.of(release)
    above, below = (np.maximum(0, mixture.log_mean_powers(p)) + LOG_ROUNDING for p in (orders, 1 - orders))
    with np.errstate(over="ignore"):
        whole = np.where(above + below < 50, np.log1p(np.expm1(above) + np.expm1(below)), np.logaddexp(above, below))
    return np.minimum(whole / (orders - 1), in_every_batch)


def of_best(orders: np.ndarray, of_run: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """The divergences of the best of a random number of runs, of which each has those of ``of_run`` in both directions.

    Guarantee: they hold for any number of orders above 1, also where some divergences are infinite. Theorem 2 takes one
    of the orders for the number of runs: each is valid, and here it is the best. Divergences grow with the order.
    Source: Papernot and Steinke 2022, Theorem 6 for the Poisson distribution, Theorem 2 for all others.
    """
    found = of_run + math.log(mean) / (orders - 1)
    if math.isinf(shape):
        curve = RdpCurve(orders, of_run)
        return found + mean * np.array([curve.delta(epsilon=math.log1p(1 / above)) for above in orders - 1])
    from noisette.accounting.repeated_runs import gamma_of  # which imports this module

    log_gamma = math.log(gamma_of(mean, shape)) - 1e-12  # below its rounding
    found += (1 + shape) * np.min((1 - 1 / orders) * of_run - log_gamma / orders)
    return np.array([np.min(found[orders >= order]) for order in orders])


_VALUES = 600  # of the privacy loss, on each side of 0


def renyi_loss(curve: RdpCurve, tail: float) -> LossDistribution:
    """The worst privacy loss in either direction of releases of which only this curve is known.

    As a function of exp(epsilon) the exact delta is convex, so it is not above the convex hull of bounds at single
    points; a distribution on these points has that hull as its delta. At epsilons below 0 the bound is that of the
    other direction: delta(-e) = 1 - exp(-e) (1 - delta(e)).
    Source: Zhu, Dong and Wang 2022, Proposition 7.
    """
    largest = min(curve.epsilon(delta=max(tail, 1e-300)), 700.0)
    above = largest * np.linspace(0, 1, _VALUES + 1)[1:] ** 2  # denser near 0
    deltas = np.array([curve.delta(epsilon=float(e)) for e in above])
    x = np.concatenate(([0.0], np.exp(-above[::-1]), np.exp(above)))
    bounds = np.concatenate(([1.0], 1 - np.exp(-above[::-1]) * (1 - deltas[::-1]), deltas))
    hull = _convex_hull(x, np.minimum(bounds, 1.0))
    x, bounds = x[hull], bounds[hull]
    slopes = np.append(np.diff(bounds) / np.diff(x), 0.0)
    masses = x[1:] * np.diff(slopes) * (1 + 1e-9)  # more than rounding can take off
    kept = masses > 0
    return LossDistribution(np.log(x[1:])[kept], masses[kept], float(bounds[-1]) * (1 + 1e-9))


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


MOMENT_ORDERS = (*range(1, 64), *_LARGE)  # whole ones have a closed form
MOMENT_ROUNDING = 1e-13  # relative, of a sum over many points and of its logarithm: about ten times what is observed


def log_moments(event: Sampled, orders: np.ndarray) -> np.ndarray:
    """alpha(order) of one release, for each order above 0: the larger of ln E1 and ln E2, which is always ln E2.

    E2 is the mean of (mu / mu0)^order under mu, with the record whose presence turns mu0 into mu. Whole orders have a
    closed form, others are a quadrature, or where that takes millions of points those of the next whole order: larger.
    Source: Abadi et al. 2016, section 3.2 and appendix; E1 <= E2 by Mironov, Talwar and Zhang 2019, Theorem 5.

    >>> log_moments(kinds.PoissonGaussian(0.01, 4.0), np.array([1, 1.5, 2, 32])).round(8)
    array([6.45000e-06, 1.21000e-05, 1.93600e-05, 3.47604e-03])
    """
    if is_unbounded(event):
        return np.full(len(orders), math.inf)
    noise = resolved_noise(event.noise_multiplier)
    if event.sampling_rate == 1:
        return orders * (orders + 1) / (2 * noise**2)
    moments = np.full(len(orders), math.inf)
    parts = orders != np.floor(orders)
    if parts.any():
        log_means = Mixture.of(event).log_mean_powers(orders[parts] + 1)
        moments[parts] = np.maximum(0.0, log_means) + MOMENT_ROUNDING * (1 + np.abs(log_means))
    for missing in np.flatnonzero(np.isinf(moments)):
        moments[missing] = _closed_form(event.sampling_rate, noise, math.ceil(orders[missing]))
    return moments


def _closed_form(q: float, noise: float, order: int) -> float:
    """ln E2 as 1 plus positive terms, which keep a tiny moment exact to the last digits and never negative."""
    k = np.arange(2, order + 2)
    exponents = k * (k - 1) / (2 * noise**2)
    # ln(e^x - 1) is right for tiny and for huge x
    logs = _log_subsets(order + 1)[2:] + k * math.log(q) + (order + 1 - k) * math.log1p(-q)
    logs += exponents + np.log(-np.expm1(-exponents))
    top = float(logs.max())
    return float(np.logaddexp(0.0, top + math.log(np.exp(logs - top).sum())))


@cache
def _log_subsets(n: int) -> np.ndarray:
    return log_binomial(np.arange(n + 1), n, 0.5) + n * math.log(2)


@dataclass(frozen=True)
class MomentsAccountant:
    """The accountant of Abadi et al.: adds up log-moments of the privacy loss, of orders above 0, whole or not.

    Orders ``range(1, 33)``, those of the paper, certify no epsilon below ln(1/delta)/32; the default goes on to 1024.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> accountant = MomentsAccountant(orders=range(1, 33))
    >>> round(accountant.compose({PoissonGaussian(0.01, 4.0): 10_000}).epsilon(delta=1e-5), 2)
    1.26
    """

    name = "moments"
    description = "moments accountant of Abadi et al."
    supports_sampling = True

    orders: Sequence[float] = MOMENT_ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", valid_orders(self.orders, above=0))

    def compose(self, events: Events) -> RdpCurve:
        """The log-moments of all events add up (Theorem 2.2). One over its order is the divergence of order + 1."""
        orders = np.array(self.orders, dtype=float)
        total = np.zeros(len(orders))
        for event, times in composed_events(events).items():
            if not isinstance(event, Sampled):
                raise unsupported(event, self.name)
            total += times * log_moments(event, orders)
        return RdpCurve(orders + 1, total / orders, improved=False)
