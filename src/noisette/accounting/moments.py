"""The moments accountant: closed forms for whole orders, quadrature for orders between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import Events, Sampled
from noisette.accounting.interface import require_sampled, resolved_noise, valid_orders
from noisette.errors import not_negative, open_fraction, positive

ORDERS = (*range(1, 64), 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)

# A quadrature of more points is not attempted; only tiny noise at a huge order needs that many.
MOST_POINTS = 2_000_000

# The relative error of a sum over many points, and of its logarithm: about ten times what is observed.
ROUNDING = 1e-13


def log_moment(event: Sampled, order: float) -> float:
    """alpha(order) of one release: the larger of ln E1 and ln E2, which is always ln E2.

    E2 is the mean of (mu / mu0)^order under mu, with the record whose presence turns mu0 into mu. Whole orders have a
    closed form, others are a quadrature; where that would take millions of points, the result is that of the next
    whole order, which is larger.

    Args:
        event: a release over a Poisson batch or over all records.
        order: any real number above 0.

    Source: Abadi et al. 2016, section 3.2 and appendix; E1 <= E2 by Mironov, Talwar and Zhang 2019, Theorem 5.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> round(log_moment(PoissonGaussian(0.01, 4.0), 32), 10)
    0.0034760438
    >>> [round(log_moment(PoissonGaussian(0.01, 4.0), order), 8) for order in (1, 1.5, 2)]
    [6.45e-06, 1.21e-05, 1.936e-05]
    """
    positive(order=order)
    if order != int(order):
        known = _quadrature(event, order + 1)
        if known is not None:
            return known
    return _closed_form(event, math.ceil(order))


def _closed_form(event: Sampled, order: int) -> float:
    """ln E2 as a binomial sum.

    The binomial weights sum to 1, so E2 is 1 plus terms that are all positive. Adding up those terms, instead of E2
    itself, keeps a tiny moment exact to the last digits and never negative.
    """
    n, q, sigma = order + 1, event.sampling_rate, resolved_noise(event)
    if sigma == 0:
        return math.inf
    k = np.arange(2, n + 1)
    log_binomial = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    log_weight = log_binomial + scipy.special.xlogy(k, q) + scipy.special.xlog1py(n - k, -q)
    exponent = k * (k - 1) / (2 * sigma**2)
    log_excess = exponent + np.log(-np.expm1(-exponent))  # ln(e^x - 1), for tiny and for huge x
    return float(np.logaddexp(0.0, np.logaddexp.reduce(log_weight + log_excess)))


def _quadrature(event: Sampled, power: float) -> float | None:
    """ln of the mean of (mu / mu0)^power under mu0, rounded upwards; ``None`` where it takes too many points.

    E2 of an order is the power order + 1; E1 is the power -order.

    The integrand is a sum of bumps between 0 and the power, each no wider than the noise. Sums over equal distances
    converge exponentially for it: the ratio of the densities has no zero within pi * sigma^2 of the real line.
    """
    q, sigma = event.sampling_rate, resolved_noise(event)
    if sigma == 0:
        return math.inf
    low, high = min(0.0, power) - 12 * sigma, max(0.0, power) + 12 * sigma
    distance = sigma**2 / math.sqrt(4 * sigma**2 + 4 + max(0.0, -power))
    if high - low > MOST_POINTS * distance:
        return None
    y = np.arange(low, high, distance)
    with np.errstate(divide="ignore"):  # of the logarithm of 1 - q at rate 1
        log_ratio = np.logaddexp(np.log1p(-q), math.log(q) + (2 * y - 1) / (2 * sigma**2))
    log_density = -((y / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    exponents = log_density + power * log_ratio
    peak = float(exponents.max())
    log_mean = peak + math.log(distance * float(np.exp(exponents - peak).sum()))
    return max(0.0, log_mean) + ROUNDING * (1 + abs(log_mean))


@dataclass(frozen=True, eq=False)
class MomentsCurve:
    """The log-moments of all events together; the tail bound converts them to epsilon and to delta."""

    orders: np.ndarray
    log_moments: np.ndarray

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta: the smallest (alpha - ln delta) / order.

        Source: Abadi et al. 2016, Theorem 2.2.
        """
        open_fraction(delta=delta)
        if not self.log_moments.any():
            return 0.0
        return float(np.min((self.log_moments - np.log(delta)) / self.orders))

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon: the smallest exp(alpha - order * epsilon).

        Source: Abadi et al. 2016, Theorem 2.2.
        """
        not_negative(epsilon=epsilon)
        if not self.log_moments.any():
            return 0.0
        return float(np.exp(min(0.0, np.min(self.log_moments - self.orders * epsilon))))


@dataclass(frozen=True)
class MomentsAccountant:
    """The accountant of Abadi et al.: adds up log-moments of the privacy loss.

    Args:
        orders: numbers above 0, whole or not. ``range(1, 33)`` are those of the paper, which cannot certify an epsilon
            below ln(1/delta)/32; the default goes on to 1024.

    Raises:
        TypeError, ValueError: there is no order, or one is not a number above 0.

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

    orders: Sequence[float] = ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", valid_orders(self.orders, above=0))

    def compose(self, events: Events) -> MomentsCurve:
        """The curve of these events: their log-moments add up.

        Raises:
            UnsupportedEventError: one of them is no release over a Poisson batch or over all records.
        """
        total = np.zeros(len(self.orders))
        for event, times in require_sampled(events, self.name).items():
            total += times * np.array([log_moment(event, order) for order in self.orders])
        return MomentsCurve(np.array(self.orders), total)
