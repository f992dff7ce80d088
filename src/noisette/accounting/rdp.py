"""Rényi differential privacy, mostly through Google's ``dp-accounting``, and the moments accountant."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from noisette.accounting.events import (
    BallsInBinsGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    Neighbouring,
    PoissonGaussian,
    RepeatAndSelect,
    ReplacedPoissonGaussian,
    Sampled,
    Supported,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.accounting.interface import composed_events, is_unbounded, require_sampled, resolved_noise, unsupported
from noisette.accounting.privacy_loss import (
    Directions,
    LossDistribution,
    Mixture,
    TruncatedCase,
    ends_of_cases,
    log_binomial,
)
from noisette.errors import not_negative, open_fraction, positive

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# The best order is below 1.5 only for large groups.
ORDERS = (
    *(tenth / 10 for tenth in range(11, 110)),
    *range(11, 65),
    *(80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024),
)

# Declared amounts have divergences that only grow with the order: a small one has its best order far above.
HIGH_ORDERS = (*ORDERS, *(2**power for power in range(11, 40)))

# The divergence of Gaussian noise of this size, 5e-15 * order, is added to each release: it exceeds the rounding error,
# which could otherwise turn a tiny divergence into zero.
ROUNDING = 1e7


def valid_orders(orders: Iterable[float], *, above: int) -> tuple[float, ...]:
    """The orders of an accountant; an error if there is none, or one is not a finite number above the limit."""
    orders = tuple(orders)
    if not orders:
        raise ValueError("expected at least one order, got none")
    for order in orders:
        positive(order=order)
        if order <= above:
            raise ValueError(f"expected order > {above}, got order={order}")
    return orders


def conversion(orders: np.ndarray, log_deltas: np.ndarray) -> np.ndarray:
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
    improved: bool
    shares: np.ndarray | None = None

    def epsilon(self, *, delta: float) -> float:
        open_fraction(delta=delta)
        if not self.divergences.any() or delta > self._total_variation:
            return 0.0
        logs = math.log(delta) + self._log_shares
        added = conversion(self.orders, logs) if self.improved else -logs / (self.orders - 1)
        return max(0.0, float(np.min(self.divergences + added)))

    def delta(self, *, epsilon: float) -> float:
        not_negative(epsilon=epsilon)
        if not self.divergences.any():
            return 0.0
        logs = (self.orders - 1) * (self.divergences - epsilon) - self._log_shares
        if self.improved:
            logs += (self.orders - 1) * np.log1p(-1 / self.orders) - np.log(self.orders)
        return min(self._total_variation, math.exp(min(0.0, float(np.min(logs)))))

    @property
    def _log_shares(self) -> np.ndarray:
        return np.zeros(len(self.orders)) if self.shares is None else np.log(self.shares)

    @property
    def _total_variation(self) -> float:
        """A bound on delta at epsilon 0, from the divergence of order 1, which is less (Bretagnolle and Huber 1979)."""
        least = float(np.min(self.divergences))
        return math.sqrt(-math.expm1(-least)) if self.improved and self.shares is None else 1.0


@dataclass(frozen=True)
class RdpAccountant:
    """Adds up Rényi divergences: quick, supports most events, somewhat looser than :class:`PldAccountant`.

    Batches of fixed size have a bound that holds for every mechanism; it is about twice what the Gaussian needs. A pass
    of balls in bins counts as one release over all records, which is more than it costs. The classic rule of older
    papers, ``improved=False``, gives larger values always. Each of the ``orders`` is above 1.

    Source: Mironov, Talwar and Zhang 2019 (Poisson batches); Wang, Balle and Kasiviswanathan 2019, Theorem 27 (fixed
    size); Papernot and Steinke 2022, Theorems 2 and 6 (repeated runs).

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(RdpAccountant().compose({release: 10_000}).epsilon(delta=1e-5), 4)
    1.0355
    >>> round(RdpAccountant(improved=False).compose({release: 10_000}).epsilon(delta=1e-5), 4)
    1.2586
    """

    name = "rdp"
    description = "Rényi differential privacy"
    method = "Rényi divergences (RDP)"
    upper_bound = True
    in_recipes = True

    improved: bool = True
    orders: Sequence[float] = ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", valid_orders(self.orders, above=1))

    def compose(self, events: Events) -> RdpCurve:
        events = composed_events(events)
        orders = tuple(self.orders)
        total = np.zeros(len(orders))
        for event, times in events.items():
            total += times * (_divergences(event, orders) + np.array(orders) / (2 * ROUNDING**2))
        return RdpCurve(np.array(orders), total, self.improved)


@lru_cache(maxsize=16384)
def _divergences(event: Event, orders: tuple[float, ...]) -> np.ndarray:
    has_delta = isinstance(event, DpAmount) and event.delta > 0
    if has_delta or isinstance(event, ReplacedPoissonGaussian) or not isinstance(event, Supported):
        raise unsupported(event, RdpAccountant.name)
    if is_unbounded(event):
        return np.full(len(orders), math.inf)
    match event:
        case Gaussian() | PoissonGaussian():
            return _sampled_divergences(event, 1, np.array(orders))
        case GroupPrivacy() | UserLevel():
            return _sampled_divergences(event.event, event.records, np.array(orders))
        case TruncatedPoissonGaussian():
            return _truncated_divergences(event, orders)
        case BallsInBinsGaussian() | DiscreteGaussian():
            # Canonne, Kamath and Steinke 2020, Theorem 4; a mixture of releases over all records, one a bin, costs no
            # more than one
            return np.array(orders) / (2 * resolved_noise(event) ** 2)
        case ZcdpAmount():
            return event.rho * np.array(orders)
        case Laplace():
            return _laplace_divergences(event, orders)
        case DpAmount():
            return _amount_divergences(event, orders)
        case _:
            assert isinstance(event, FixedSizeGaussian | RepeatAndSelect)
            return _library_divergences(event, orders)


def _sampled_divergences(release: Sampled, records: int, orders: np.ndarray) -> np.ndarray:
    if release.sampling_rate == 1:
        return orders * (records / resolved_noise(release)) ** 2 / 2
    if records == 1:
        return log_moments(release, orders - 1) / (orders - 1)
    return Mixture.of(GroupPrivacy(release, records)).divergences(orders)


def _truncated_divergences(event: TruncatedPoissonGaussian, orders: tuple[float, ...]) -> np.ndarray:
    """Those of a mixture, as anyone may see whether the batch is full; the largest of all cases."""
    above = np.array(orders) - 1
    cases = [
        np.logaddexp.reduce([math.log(often) + above * _divergences(release, orders) for often, release in case.parts])
        for case in (TruncatedCase.of(event, *ends) for ends in pairwise(ends_of_cases(event)))
    ]
    return np.max(cases, axis=0) / above


def _laplace_divergences(event: Laplace, orders: tuple[float, ...]) -> np.ndarray:
    """Source: Mironov 2017, Proposition 6."""
    a, loss = np.array(orders), 1 / event.noise_multiplier
    log_weights = np.log(a) - np.log(2 * a - 1), np.log(a - 1) - np.log(2 * a - 1)
    return np.logaddexp(log_weights[0] + (a - 1) * loss, log_weights[1] - a * loss) / (a - 1)


def _amount_divergences(event: DpAmount, orders: tuple[float, ...]) -> np.ndarray:
    """Those of randomised response, the worst mechanism of its epsilon."""
    a = np.array(orders)
    log_likely = -math.log1p(math.exp(-event.epsilon))
    log_unlikely = log_likely - event.epsilon
    return np.logaddexp(log_likely + (a - 1) * event.epsilon, log_unlikely - (a - 1) * event.epsilon) / (a - 1)


def _library_divergences(event: FixedSizeGaussian | RepeatAndSelect, orders: tuple[float, ...]) -> np.ndarray:
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant as Renyi

    replaced = event.neighbouring is Neighbouring.REPLACE_ONE
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    with _library_warnings_off():
        return Renyi(orders, relation).compose(_library_event(event)).rdp


def _library_event(event: Sampled | FixedSizeGaussian | RepeatAndSelect) -> DpEvent:
    from dp_accounting import dp_event as library  # imported here because the import takes most of a second

    match event:
        case Gaussian():
            return library.GaussianDpEvent(resolved_noise(event))
        case PoissonGaussian():
            return library.PoissonSampledDpEvent(event.sampling_rate, library.GaussianDpEvent(resolved_noise(event)))
        case FixedSizeGaussian():
            # The library's noise is in units of the sensitivity to a replaced record: twice the clipping norm.
            noise = library.GaussianDpEvent(resolved_noise(event) / 2)
            return library.SampledWithoutReplacementDpEvent(event.size, event.batch_size, noise)
        case RepeatAndSelect():
            rounding = library.GaussianDpEvent(ROUNDING)
            run = library.ComposedDpEvent([])
            for release, times in event.run:
                rounded = library.ComposedDpEvent([_library_event(release), rounding])
                run.events.append(library.SelfComposedDpEvent(rounded, times))
            return library.RepeatAndSelectDpEvent(run, event.mean, event.shape)


# The library warns about single orders, which it leaves out of the minimum.
@contextmanager
def _library_warnings_off() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


VALUES = 600  # of the privacy loss, on each side of 0


def renyi_directions(curve: RdpCurve, tail: float) -> Directions:
    """The worst privacy loss of releases of which only this curve is known, which holds in both directions.

    As a function of exp(epsilon) the exact delta is convex, so it is not above the convex hull of bounds at single
    points; a distribution on these points has that hull as its delta. At epsilons below 0 the bound is that of the
    other direction: delta(-e) = 1 - exp(-e) (1 - delta(e)).

    Source: Zhu, Dong and Wang 2022, Proposition 7.
    """
    largest = min(curve.epsilon(delta=max(tail, 1e-300)), 700.0)
    above = largest * np.linspace(0, 1, VALUES + 1)[1:] ** 2  # denser near 0
    deltas = np.array([curve.delta(epsilon=float(e)) for e in above])
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


# Whole orders have a closed form.
MOMENT_ORDERS = (*range(1, 64), 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)

# The relative error of a sum over many points, and of its logarithm: about ten times what is observed.
MOMENT_ROUNDING = 1e-13


def log_moments(event: Sampled, orders: np.ndarray) -> np.ndarray:
    """alpha(order) of one release, for each order above 0: the larger of ln E1 and ln E2, which is always ln E2.

    E2 is the mean of (mu / mu0)^order under mu, with the record whose presence turns mu0 into mu. Whole orders have a
    closed form, others are a quadrature; where that would take millions of points, the result is that of the next
    whole order, which is larger.

    Source: Abadi et al. 2016, section 3.2 and appendix; E1 <= E2 by Mironov, Talwar and Zhang 2019, Theorem 5.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> log_moments(PoissonGaussian(0.01, 4.0), np.array([1, 1.5, 2, 32])).round(8)
    array([6.45000e-06, 1.21000e-05, 1.93600e-05, 3.47604e-03])
    """
    if is_unbounded(event):
        return np.full(len(orders), math.inf)
    noise = resolved_noise(event)
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

    The orders of the paper, ``range(1, 33)``, cannot certify an epsilon below ln(1/delta)/32; the default goes on to
    1024.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(MomentsAccountant(orders=range(1, 33)).compose({release: 10_000}).epsilon(delta=1e-5), 2)
    1.26
    """

    name = "moments"
    description = "moments accountant of Abadi et al."
    method = "log-moments"
    upper_bound = True
    in_recipes = True

    orders: Sequence[float] = MOMENT_ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", valid_orders(self.orders, above=0))

    def compose(self, events: Events) -> RdpCurve:
        """The curve of these events: their log-moments add up. A moment over its order is the divergence of order + 1.

        Source: Abadi et al. 2016, Theorem 2.2.
        """
        orders = np.array(self.orders, dtype=float)
        total = np.zeros(len(orders))
        for event, times in require_sampled(events, self.name).items():
            total += times * log_moments(event, orders)
        return RdpCurve(orders + 1, total / orders, improved=False)
