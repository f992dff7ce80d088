"""Searches of which only the best run is released: the random number of runs, and plans that keep a budget."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from functools import cache
from itertools import count
from typing import Protocol, Self

import numpy as np

from noisette import errors as checks
from noisette.accounting.calibrate import NO_EVENTS, Budget, check_ranges
from noisette.accounting.events import Events, PoissonGaussian, RepeatAndSelect
from noisette.accounting.interface import Accountant
from noisette.accounting.rdp import RdpAccountant


class Keystream(Protocol):
    """Secret random words, such as :class:`noisette.core.noise.SecretKey`."""

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None: ...


_DIGITS = 60  # of the parameter gamma; sums of probabilities have twice as many


@dataclass(frozen=True)
class NumberOfRuns:
    """The truncated negative binomial distribution of a search, or the Poisson distribution for an infinite shape.

    With the parameter gamma in (0, 1], P(k) is proportional to (1 - gamma)^k times the product over l < k of (shape +
    l) / (l + 1), for k >= 1. Its mean is shape (1 - gamma) / (gamma (1 - gamma^shape)). The Poisson distribution alone
    has a chance of no run.
    Guarantee: the mean of the distribution that is drawn from is at most ``mean``, by less than one part in 1e50, so
    that it costs no more than the event in the ledger.
    Source: Papernot and Steinke 2022, Definition 1.

    >>> [round(NumberOfRuns(mean=4.0, shape=1.0).probability(k), 4) for k in (0, 1, 2)]
    [0.0, 0.25, 0.1875]
    """

    mean: float
    shape: float

    @classmethod
    def of(cls, event: RepeatAndSelect) -> Self:
        return cls(float(event.mean), float(event.shape))

    def probability(self, number: int) -> float:
        with localcontext(self._context):
            return next(float(chance) if k == number else 0.0 for k, chance in self._chances() if k >= number)

    def quantile(self, share: float) -> int:
        """The least number that is not exceeded with this probability, in (0, 1).

        >>> NumberOfRuns(mean=10.0, shape=1.0).quantile(0.5), NumberOfRuns(mean=10.0, shape=1.0).quantile(0.9)
        (7, 22)
        """
        checks.open_fraction(share=share)
        return self._quantile(Decimal(share))

    def draw(self, key: Keystream) -> int:
        """A number drawn from the secret key. The same key gives the same number, so it is used for one search only.

        It is the quantile of 256 random bits, so its distribution differs from that of the event by less than 1e-76.
        """
        words = np.empty(4, dtype=np.uint64)
        key.fill(words, purpose="number of runs", name="", step=0)
        with localcontext(self._context):
            share = (int.from_bytes(words.astype(">u8").tobytes()) + Decimal("0.5")) / 2**256
        return self._quantile(share)

    def _quantile(self, share: Decimal) -> int:
        with localcontext(self._context):
            total = Decimal(0)
            for number, chance in self._chances():
                total += chance
                if total >= share:
                    return number
        raise AssertionError("the distribution has infinite support")

    @property
    def _context(self) -> Context:
        return Context(prec=2 * _DIGITS + _lost_digits(self.shape))

    def _chances(self) -> Iterator[tuple[int, Decimal]]:
        """The numbers of runs with their probabilities, in the precision of the context."""
        mean, shape, gamma = Decimal(self.mean), Decimal(self.shape), gamma_of(self.mean, self.shape)
        if shape.is_infinite():
            chance = (-mean).exp()
            for number in count():
                yield number, chance
                chance *= mean / (number + 1)
        if gamma == 1:
            chance = Decimal(1)
        else:
            chance = (1 - gamma) / -gamma.ln() if shape == 0 else shape * (1 - gamma) / (gamma**-shape - 1)
        for number in count(1):
            yield number, chance
            chance *= (1 - gamma) * (number + shape) / (number + 1)


def _lost_digits(shape: float) -> int:
    """How many leading digits gamma^shape shares with 1."""
    return max(0, -Decimal(shape).adjusted()) if 0 < shape < math.inf else 0


@cache
def gamma_of(mean: float, shape: float) -> Decimal:
    """The parameter gamma by bisection, rounded upwards, so that the mean is rounded downwards."""
    if math.isinf(shape) or mean == 1:
        return Decimal(1)
    power = Decimal(shape)
    with localcontext(Context(prec=2 * (_DIGITS + _lost_digits(shape)))):
        low, high = Decimal(0), Decimal(1)
        while high - low > high.scaleb(-_DIGITS):
            gamma = (low + high) / 2
            tail = -gamma.ln() if power == 0 else (1 - gamma**power) / power
            low, high = (low, gamma) if (1 - gamma) / (gamma * tail) <= Decimal(mean) else (gamma, high)
    return Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(high)


# The shapes that are tried where none is chosen. A larger shape has a steadier number of runs and costs more, but for
# the Poisson distribution, which is the steadiest of all and often the cheapest for few runs.
SHAPES = (0.0, 0.5, 1.0, 3.0, math.inf)


def shapes_for(mean: float) -> list[float]:
    """The shapes to choose from: the Poisson distribution is one of them if it hardly ever draws no run."""
    return [shape for shape in SHAPES if shape < math.inf or math.exp(-mean) < 1e-3]


@dataclass(frozen=True)
class SearchPlan:
    """A search that keeps a budget: what is charged before its first run, and its epsilon with all prior events."""

    event: RepeatAndSelect
    epsilon: float
    delta: float

    @property
    def noise_multiplier(self) -> float:
        return self.event.run[0][0].noise_multiplier


def least_noise_search(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    mean: float,
    shape: float | None = None,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
    in_each_run: Events = NO_EVENTS,
) -> SearchPlan:
    """The search of a wanted mean number of runs that keeps the budget with the least noise.

    Args:
        epsilon, delta, sampling_rate, steps: the budget, and each run, as for ``noise_multiplier_for``.
        mean, shape: as in :class:`RepeatAndSelect`; the best of :func:`shapes_for` unless one is given.
        accountant: computes the privacy cost; :class:`RdpAccountant` unless given.
        prior_events: other releases about the same records, which count towards the same budget.
        in_each_run: what each run releases beside its steps, such as a noisy score, with noise that is given.

    Guarantee: by this accountant the search costs ``epsilon`` or less; with one part in a thousand less noise and the
    same shape it would cost more.
    An argument outside its range is a ``ValueError``, as is a budget that no noise keeps.

    >>> plan = least_noise_search(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000, mean=10.0)
    >>> plan.epsilon <= 3.0, plan.event.shape, 1.0 < plan.noise_multiplier < 1.5
    (True, 0.0, True)
    """
    checks.all_of(
        lambda: check_ranges(epsilon=epsilon, delta=delta, steps=steps),
        lambda: RepeatAndSelect(((PoissonGaussian(sampling_rate, 1.0), 1),), mean, 0.0 if shape is None else shape),
    )

    def search(noise: float, shape: float) -> RepeatAndSelect:
        whole = Counter({PoissonGaussian(sampling_rate, noise): steps}) + Counter(in_each_run)
        return RepeatAndSelect(tuple(whole.items()), mean, shape)  # pyright: ignore[reportArgumentType] - it checks its runs

    plans: list[SearchPlan] = []
    refusals: list[str] = []
    accountant = accountant or RdpAccountant()
    budget = Budget(epsilon, delta, accountant, NO_EVENTS)
    for chosen in shapes_for(mean) if shape is None else (shape,):

        def events(noise: float, shape: float = chosen) -> Events:
            return {**prior_events, search(noise, shape): 1}

        try:
            noise = budget.least_noise(events, sampling_rate=sampling_rate, steps=steps)
        except ValueError as refusal:
            refusals.append(str(refusal))
            continue
        plans.append(SearchPlan(search(noise, chosen), accountant.compose(events(noise)).epsilon(delta=delta), delta))
    if not plans:
        raise ValueError(f"no search of mean={mean} keeps the budget: {refusals[0]}")
    return min(plans, key=lambda plan: plan.noise_multiplier)
