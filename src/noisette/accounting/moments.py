"""The moments accountant, exact for integer orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from noisette._check import count, open_fraction, positive
from noisette.accounting.accountant import priced_noise, sampled_only
from noisette.accounting.events import Events, Sampled

ORDERS = (*range(1, 64), 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)


def log_moment(event: Sampled, order: int) -> float:
    """alpha(order) of one release: ln E2, which bounds both directions.

    The binomial weights sum to 1, so E2 is 1 plus terms that are all positive. Adding up those terms, instead of E2
    itself, keeps a tiny moment exact to the last digits and never negative.

    Source: Abadi et al. 2016, section 3.2 and appendix; E1 <= E2 by Mironov, Talwar and Zhang 2019.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> round(log_moment(PoissonGaussian(0.01, 4.0), 32), 10)
    0.0034760438
    """
    n, q, sigma = order + 1, event.sampling_rate, priced_noise(event)
    if sigma == 0:
        return math.inf
    k = np.arange(2, n + 1)
    log_binomial = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    log_weight = log_binomial + xlogy(k, q) + xlog1py(n - k, -q)
    exponent = k * (k - 1) / (2 * sigma**2)
    log_excess = exponent + np.log(-np.expm1(-exponent))  # ln(e^x - 1), for tiny and for huge x
    return float(np.logaddexp(0.0, logsumexp(log_weight + log_excess)))


@dataclass(frozen=True, eq=False)
class MomentsCurve:
    """The log-moments of all events together, and the tail bound read both ways."""

    orders: np.ndarray
    log_moments: np.ndarray

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta: the smallest (alpha - ln delta) / order.

        Source: Abadi et al. 2016, Theorem 2.2.

        Raises:
            ValueError: ``delta`` is not in (0, 1).
        """
        open_fraction(delta=delta)
        if not self.log_moments.any():
            return 0.0
        return float(np.min((self.log_moments - np.log(delta)) / self.orders))

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon: the smallest exp(alpha - order * epsilon).

        Source: Abadi et al. 2016, Theorem 2.2.

        Raises:
            ValueError: ``epsilon`` is not above 0.
        """
        positive(epsilon=epsilon)
        if not self.log_moments.any():
            return 0.0
        return float(np.exp(min(0.0, np.min(self.log_moments - self.orders * epsilon))))


@dataclass(frozen=True)
class MomentsAccountant:
    """The accountant of Abadi et al.: adds up log-moments of the privacy loss.

    Args:
        orders: whole numbers of at least 1. ``range(1, 33)`` are those of the paper, which cannot certify an epsilon
            below ln(1/delta)/32; the default goes on to 1024.

    Raises:
        TypeError, ValueError: there is no order, or one is not a whole number of at least 1.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(MomentsAccountant(orders=range(1, 33)).price({release: 10_000}).epsilon(delta=1e-5), 2)
    1.26
    """

    name: ClassVar[str] = "moments"

    orders: Sequence[int] = ORDERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(self.orders))
        if not self.orders:
            raise ValueError("expected at least one order, got none")
        for order in self.orders:
            count(order=order)

    def price(self, events: Events) -> MomentsCurve:
        """The curve of these events: their log-moments add up.

        Raises:
            Unpriceable: one of them is no release over a Poisson batch or over all records.
        """
        total = np.zeros(len(self.orders))
        for event, times in sampled_only(events, self.name).items():
            total += times * np.array([log_moment(event, order) for order in self.orders])
        return MomentsCurve(np.array(self.orders), total)
