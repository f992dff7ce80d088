"""Searches of which only the best run is released: the random number of runs, and plans that keep a budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from functools import cached_property
from itertools import count
from typing import Protocol

import numpy as np

from noisette import errors as checks
from noisette.accounting.calibrate import NO_EVENTS, noise_multiplier_for
from noisette.accounting.events import Events, PoissonGaussian, RepeatAndSelect, Sampled
from noisette.accounting.interface import Accountant, PrivacyCurve
from noisette.accounting.pld import PldAccountant
from noisette.accounting.rdp import RdpAccountant


class Keystream(Protocol):
    """Secret random words."""

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        """Write the words from ``start`` on of this stream's step into an array of 64-bit words."""
        ...


# Decimal digits of a 64-bit word, rounded upwards, and those that the error of a sum of probabilities may take.
_DIGITS_PER_WORD = 20
_ERROR_DIGITS = 20

# Digits of the parameter gamma.
_DIGITS = 60


@dataclass(frozen=True)
class NumberOfRuns:
    """The truncated negative binomial distribution of a search, or the Poisson distribution for an infinite shape.

    With the parameter gamma in (0, 1], P(k) is proportional to (1 - gamma)^k times the product over l < k of
    (shape + l) / (l + 1), for k >= 1. Its mean is shape (1 - gamma) / (gamma (1 - gamma^shape)). The Poisson
    distribution alone has a chance of no run.

    Args:
        mean: expected number of runs, at least 1.
        shape: 0 or more; 0 is the logarithmic distribution, 1 the geometric one.

    Guarantee: the mean of the distribution that is drawn from is at most ``mean``, by less than one part in 1e50, so
    that it costs no more than the event in the ledger.

    Source: Papernot and Steinke 2022, Definition 1.

    >>> [round(NumberOfRuns(mean=4.0, shape=1.0).probability(k), 4) for k in (0, 1, 2)]
    [0.0, 0.25, 0.1875]
    """

    mean: float
    shape: float

    @classmethod
    def of(cls, event: RepeatAndSelect) -> NumberOfRuns:
        """The number of runs of this search."""
        return cls(float(event.mean), float(event.shape))

    def probability(self, number: int) -> float:
        """The probability of exactly so many runs."""
        with localcontext(Context(prec=_DIGITS + self._lost_digits)):
            for k, chance in self._chances():
                if k >= number:
                    return float(chance) if k == number else 0.0
        raise AssertionError("the distribution has infinite support")

    def quantile(self, share: float) -> int:
        """The least number that is not exceeded with this probability, in (0, 1).

        >>> NumberOfRuns(mean=10.0, shape=1.0).quantile(0.5), NumberOfRuns(mean=10.0, shape=1.0).quantile(0.9)
        (7, 22)
        """
        checks.open_fraction(share=share)
        with localcontext(Context(prec=_DIGITS + self._lost_digits)):
            total = Decimal(0)
            for number, chance in self._chances():
                total += chance
                if total >= Decimal(share):
                    return number
        raise AssertionError("the distribution has infinite support")

    def draw(self, key: Keystream) -> int:
        """A number drawn from the secret key. The same key gives the same number, so it is used for one search only.

        The keystream is a uniform number of unlimited binary digits. Digits are added until the number, with all
        digits that might follow, lies between two neighbouring sums of probabilities, whatever their rounding errors.
        """
        for doublings in count(1):
            words = np.empty(2**doublings, dtype=np.uint64)
            key.fill(words, purpose="number of runs", name="", step=0)
            numerator = int.from_bytes(words.astype(">u8").tobytes())
            if (number := self._inverse(numerator, bits=64 * len(words))) is not None:
                return number
        raise AssertionError("a keystream has digits without end")

    def _inverse(self, numerator: int, *, bits: int) -> int | None:
        """The number of runs at numerator / 2^bits of the distribution; ``None`` where more bits are needed."""
        digits = _DIGITS_PER_WORD * bits // 64
        with localcontext(Context(prec=digits + 2 * _ERROR_DIGITS + self._lost_digits)):
            low, high = (Decimal(end) / 2**bits for end in (numerator, numerator + 1))
            error = Decimal(10) ** -digits
            total = Decimal(0)
            for number, chance in self._chances():
                total += chance
                if high <= total - error:
                    return number
                if low < total + error:
                    return None
        raise AssertionError("the distribution has infinite support")

    def _chances(self) -> Iterator[tuple[int, Decimal]]:
        """The numbers of runs with their probabilities, in the precision of the context."""
        mean, shape, gamma = Decimal(self.mean), Decimal(self.shape), self._gamma
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

    @property
    def _lost_digits(self) -> int:
        """How many leading digits gamma^shape shares with 1."""
        return max(0, -Decimal(self.shape).adjusted()) if 0 < self.shape < math.inf else 0

    @cached_property
    def _gamma(self) -> Decimal:
        """The parameter gamma by bisection, rounded upwards, so that the mean is rounded downwards."""
        if math.isinf(self.shape) or self.mean == 1:
            return Decimal(1)
        shape = Decimal(self.shape)
        with localcontext(Context(prec=2 * (_DIGITS + self._lost_digits))):

            def mean(gamma: Decimal) -> Decimal:
                tail = -gamma.ln() if shape == 0 else (1 - gamma**shape) / shape
                return (1 - gamma) / (gamma * tail)

            low, high = Decimal(0), Decimal(1)
            while high - low > high.scaleb(-_DIGITS):
                middle = (low + high) / 2
                low, high = (low, middle) if mean(middle) <= Decimal(self.mean) else (middle, high)
        return Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(high)


# The shapes that are tried where none is chosen. A larger shape has a steadier number of runs and costs more, but for
# the Poisson distribution, which is the steadiest of all and often the cheapest for few runs.
SHAPES = (0.0, 0.5, 1.0, 3.0, math.inf)


@dataclass(frozen=True)
class SearchPlan:
    """A search that keeps a budget.

    Args:
        event: what is charged to the ledger before the first run.
        epsilon: what it costs, with the prior events of the plan.
        delta: the probability with which the bound on epsilon may fail.
    """

    event: RepeatAndSelect
    epsilon: float
    delta: float

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the steps of each run, which stand first."""
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
        epsilon: the budget, above 0.
        delta: the probability with which the bound on epsilon may fail, in (0, 1).
        sampling_rate: probability in (0, 1] that an example is in a batch of a run.
        steps: steps of each run, at least 1.
        mean: expected number of runs, at least 1.
        shape: of the distribution of the number of runs, as in :class:`RepeatAndSelect`; the best of ``SHAPES`` unless
            given.
        accountant: computes the privacy cost; :class:`RdpAccountant` unless given.
        prior_events: other releases about the same records, which count towards the same budget.
        in_each_run: what each run releases beside its steps, such as a noisy score, with noise that is given.

    Guarantee: by this accountant the search costs ``epsilon`` or less; with one part in a thousand less noise and the
    same shape it would cost more.

    Raises:
        TypeError, ValueError: an argument is outside its range, or no noise keeps the budget.

    >>> plan = least_noise_search(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000, mean=10.0)
    >>> plan.epsilon <= 3.0, plan.event.shape, 1.0 < plan.noise_multiplier < 1.5
    (True, 0.0, True)
    """
    checks.all_of(
        lambda: checks.positive(epsilon=epsilon),
        lambda: checks.open_fraction(delta=delta),
        lambda: checks.count(steps=steps),
        lambda: RepeatAndSelect(((PoissonGaussian(sampling_rate, 1.0), 1),), mean, 0.0 if shape is None else shape),
    )
    plans: list[SearchPlan] = []
    refusals: list[str] = []
    budget = accountant or RdpAccountant()
    for chosen in SHAPES if shape is None else (shape,):
        searched = _Searched(budget, mean, chosen, prior_events, in_each_run)
        try:
            noise = noise_multiplier_for(
                epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=searched
            )
        except ValueError as refusal:
            refusals.append(str(refusal))
            continue
        release = PoissonGaussian(sampling_rate, noise)
        cost = searched.compose({release: steps}).epsilon(delta=delta)
        plans.append(SearchPlan(searched.event({release: steps}), cost, delta))
    if not plans:
        raise ValueError(f"no search of mean={mean} keeps the budget: {refusals[0]}")
    return min(plans, key=lambda plan: plan.noise_multiplier)


@dataclass(frozen=True)
class SearchComparison:
    """What it costs to release the best of some runs, and to release all of them.

    Args:
        runs: the number of runs that are released, and the mean number of those of which the best is.
        best_of: epsilon of the search with the cheapest shape.
        release_all: epsilon of all runs together.
        shape: the shape of that search.
    """

    runs: int
    best_of: float
    release_all: float
    shape: float

    @property
    def best_of_is_cheaper(self) -> bool:
        """Whether the search costs less. Otherwise release all runs and choose among them, which costs nothing more."""
        return self.best_of < self.release_all


def compare_search(run: Events, *, runs: int, delta: float, shape: float | None = None) -> SearchComparison:
    """Compare the search of a mean number of runs with releasing exactly as many.

    Releasing all is also worth more: the number of runs is fixed, every result can be published, and the score may be
    changed afterwards. A search becomes cheaper from a few runs on, because its cost grows with the logarithm of their
    number, while that of releasing all grows like the square root.

    Args:
        run: the releases of one run, each over a Poisson batch or over all records.
        runs: the number of runs, at least 1.
        delta: the probability with which the bounds on epsilon may fail, in (0, 1).
        shape: of the search; the cheapest of ``SHAPES`` unless given.

    Raises:
        TypeError, ValueError: an argument is outside its range.

    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.5)
    >>> [compare_search({release: 1000}, runs=runs, delta=1e-5).best_of_is_cheaper for runs in (1, 50)]
    [False, True]
    """
    checks.all_of(lambda: checks.count(runs=runs), lambda: checks.open_fraction(delta=delta))
    costs = {
        chosen: _Searched(RdpAccountant(), float(runs), chosen, NO_EVENTS, NO_EVENTS).compose(run).epsilon(delta=delta)
        for chosen in (SHAPES if shape is None else (shape,))
    }
    best = min(costs, key=lambda chosen: costs[chosen])
    everything = PldAccountant().compose({event: times * runs for event, times in run.items()})
    return SearchComparison(runs, costs[best], everything.epsilon(delta=delta), best)


@dataclass(frozen=True)
class _Searched:
    """An accountant of single runs: it gives them the cost of their search, so that noise can be solved for."""

    accountant: Accountant
    mean: float
    shape: float
    prior_events: Events
    in_each_run: Events

    @property
    def name(self) -> str:
        return self.accountant.name

    def event(self, run: Events) -> RepeatAndSelect:
        """The search of these runs.

        Raises:
            TypeError, ValueError: mean or shape is out of range, or a run holds another kind of event.
        """
        whole = Counter(run) + Counter(self.in_each_run)
        for release in whole:
            if not isinstance(release, Sampled):
                raise TypeError(f"expected releases of a Gaussian or a PoissonGaussian, got {release!r}")
        releases = tuple((release, times) for release, times in whole.items() if isinstance(release, Sampled))
        return RepeatAndSelect(releases, self.mean, self.shape)

    def compose(self, events: Events) -> PrivacyCurve:
        return self.accountant.compose({**self.prior_events, self.event(events): 1} if events else self.prior_events)
