"""Rényi differential privacy, through Google's ``dp-accounting``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from noisette._check import open_fraction, positive
from noisette.accounting.accountant import priced_noise, sampled_only
from noisette.accounting.events import Events, Sampled

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant as Renyi

# The best order is rarely below 1.5. Between integers the library sums absolute values, so it errs upwards only.
ORDERS = (
    *(tenth / 10 for tenth in range(15, 110)),
    *range(11, 65),
    *(80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024),
)

# Costs 5e-15 * order per release: more than the library's rounding, which could otherwise turn a tiny price into zero.
ROUNDING = 1e7


@dataclass(frozen=True, eq=False)
class RdpCurve:
    """The Rényi divergences of all events together."""

    renyi: Renyi

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, by the improved conversion.

        Source: Canonne, Kamath and Steinke 2020, Proposition 12.

        Raises:
            ValueError: ``delta`` is not in (0, 1).
        """
        open_fraction(delta=delta)
        with _library_is_quiet():
            return float(self.renyi.get_epsilon(delta))

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, by the improved conversion.

        Source: Canonne, Kamath and Steinke 2020, Proposition 12.

        Raises:
            ValueError: ``epsilon`` is not above 0.
        """
        positive(epsilon=epsilon)
        with _library_is_quiet():
            return float(self.renyi.get_delta(epsilon))


@dataclass(frozen=True)
class RdpAccountant:
    """Adds up Rényi divergences: quick, and somewhat larger than :class:`PldAccountant`.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(RdpAccountant().price({release: 10_000}).epsilon(delta=1e-5), 4)
    1.0355
    """

    name: ClassVar[str] = "rdp"

    def price(self, events: Events) -> RdpCurve:
        """The curve of these events: their divergences add up, order by order."""
        import dp_accounting  # takes most of a second: paid by those who price, not by those who import noisette
        from dp_accounting.rdp import RdpAccountant as Renyi

        total = Renyi(orders=ORDERS)
        with _library_is_quiet():
            for event, times in sampled_only(events, self.name).items():
                total.compose(_as_library_event(event), times)
                total.compose(dp_accounting.GaussianDpEvent(ROUNDING), times)
        return RdpCurve(total)


def _as_library_event(event: Sampled) -> Any:
    import dp_accounting

    noise = dp_accounting.GaussianDpEvent(priced_noise(event))
    return dp_accounting.PoissonSampledDpEvent(event.sampling_rate, noise)


@contextmanager
def _library_is_quiet() -> Iterator[None]:
    """Keeps the library's remarks about single orders, which it leaves out of the minimum, from standard error."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
