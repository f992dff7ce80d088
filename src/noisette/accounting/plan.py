"""Plans: the settings of a run or a search that keep a budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from noisette import errors as checks
from noisette.accounting.calibrate import NO_EVENTS, noise_multiplier_for
from noisette.accounting.events import Events, PoissonGaussian, RepeatAndSelect, Sampled
from noisette.accounting.interface import Accountant, PrivacyCurve
from noisette.accounting.pld import PldAccountant
from noisette.accounting.rdp import RdpAccountant
from noisette.errors import all_of, count, open_fraction, positive


def check_numbers(
    *,
    expected_batch_size: float,
    sampling_rate: float | None,
    steps: int | None,
    public_size: int | None,
    epochs: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
) -> None:
    """Check that every parameter is in its range, and that alternatives are not given together.

    Raises:
        ValueError: all problems at once.
    """
    checks.all_of(
        lambda: _check_has_delta(epsilon, delta),
        lambda: checks.positive(expected_batch_size=expected_batch_size),
        lambda: checks.exactly_one(sampling_rate=sampling_rate, public_size=public_size),
        lambda: checks.exactly_one(steps=steps, epochs=epochs),
        lambda: _check_has_budget(epsilon, noise_multiplier),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        lambda: public_size is None or checks.count(public_size=public_size),
        lambda: steps is None or checks.count(steps=steps),
        lambda: epochs is None or checks.positive(epochs=epochs),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        lambda: noise_multiplier is None or checks.positive(noise_multiplier=noise_multiplier),
        lambda: delta is None or checks.open_fraction(delta=delta),
    )


def _check_has_delta(epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None and delta is None:
        raise ValueError("epsilon needs delta: the probability with which the bound may fail")


def _check_has_budget(epsilon: float | None, noise_multiplier: float | None) -> None:
    if epsilon is None and noise_multiplier is None:
        raise ValueError("expected epsilon, noise_multiplier or both, got neither")


def schedule(
    expected_batch_size: float,
    sampling_rate: float | None,
    steps: int | None,
    public_size: int | None,
    epochs: float | None,
) -> tuple[float, int]:
    """Sampling rate and steps: as declared, or computed from the declared size and epochs."""
    if sampling_rate is None:
        assert public_size is not None
        sampling_rate = expected_batch_size / public_size
        if sampling_rate > 1:
            raise ValueError(
                f"expected sampling_rate <= 1, got an expected batch of {expected_batch_size} of {public_size} "
                "declared records; give a smaller batch size"
            )
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs / sampling_rate))
    return float(sampling_rate), steps


def check_delta(delta: float | None, one_over_size: float, allow_large_delta: bool) -> None:
    """Check that delta is below one over the declared size, unless a larger one is allowed.

    Raises:
        ValueError: it is larger, and that is not allowed.
    """
    if delta is not None and delta >= one_over_size and not allow_large_delta:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({one_over_size:.2g}): releasing one record "
            "in the clear would satisfy it. Choose a smaller delta, or allow it with allow_large_delta=True "
            "(on the command line --allow-large-delta)"
        )


ACCOUNTANT = PldAccountant()

LEAST_STEPS = 500  # fewer hardly train a model, whatever their noise
NEARLY = 0.95  # of the largest signal: more would cost much computation for little


@dataclass(frozen=True)
class Setting:
    """One way to train with its epsilon: an upper bound.

    Args:
        batch_size: expected size of a Poisson batch, in records.
        epochs: passes over the declared size.
        sampling_rate: probability that a record is in a batch.
        steps: number of batches.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        epsilon: its epsilon at the delta of the plan.
    """

    batch_size: int
    epochs: float
    sampling_rate: float
    steps: int
    noise_multiplier: float
    epsilon: float

    @property
    def signal(self) -> float:
        """Total signal to noise: sqrt(steps) * sampling_rate / noise_multiplier.

        It is the sum of all noised averages over the standard deviation of its noise, where every gradient has the
        clipping norm and the same direction, divided by the declared size.

        Source: Sander, Stock and Sablayrolles 2023 (TAN), section 3, up to a constant.
        """
        return math.sqrt(self.steps) * self.sampling_rate / self.noise_multiplier


def recommended(settings: Sequence[Setting]) -> Setting:
    """The setting to start from: the least computation that has nearly all the signal which the budget allows.

    Settings of fewer than ``LEAST_STEPS`` steps are left out where there are others, because so few steps hardly train.
    Of the rest, those count whose signal is at least ``NEARLY`` of the largest; of these it is one with the fewest
    epochs, which need the fewest gradients, and of these the one with the most signal.

    Args:
        settings: at least one, all of one budget and one declared size.
    """
    enough = [setting for setting in settings if setting.steps >= LEAST_STEPS] or list(settings)
    most = max(setting.signal for setting in enough)
    near = [setting for setting in enough if setting.signal >= NEARLY * most]
    return min(near, key=lambda setting: (setting.epochs, -setting.signal))


def within_budget(
    *, size: int, epsilon: float, delta: float, batch_sizes: Sequence[int], epochs: Sequence[float]
) -> Iterator[Setting]:
    """The least noise that keeps the budget, for every batch size with every number of epochs.

    Guarantee: no setting costs more than ``epsilon``.

    Raises:
        TypeError, ValueError: an argument is outside its range, a batch is larger than ``size``, or no noise keeps the
            budget.

    >>> settings = within_budget(size=60_000, epsilon=1.0, delta=1e-5, batch_sizes=[600], epochs=[10, 100])
    >>> [f"{setting.steps} steps: {setting.noise_multiplier:.1f}" for setting in settings]
    ['1000 steps: 1.4', '10000 steps: 3.8']
    """
    for batch_size, passes in product(batch_sizes, epochs):
        sampling_rate, steps = schedule(batch_size, None, None, size, passes)
        noise = noise_multiplier_for(
            epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=ACCOUNTANT
        )
        yield _setting(batch_size, passes, sampling_rate, steps, noise, delta)


def with_noise(
    *, size: int, delta: float, batch_sizes: Sequence[int], epochs: float, noise_multipliers: Sequence[float]
) -> Iterator[Setting]:
    """Epsilon of this many epochs, for every batch size with every noise multiplier.

    Guarantee: each epsilon is an upper bound.

    Raises:
        TypeError, ValueError: an argument is outside its range, or a batch is larger than ``size``.

    >>> settings = with_noise(size=60_000, delta=1e-5, batch_sizes=[600], epochs=100, noise_multipliers=[2.0, 4.0])
    >>> [round(setting.epsilon, 2) for setting in settings]
    [2.16, 0.95]
    """
    for batch_size, noise in product(batch_sizes, noise_multipliers):
        sampling_rate, steps = schedule(batch_size, None, None, size, epochs)
        yield _setting(batch_size, epochs, sampling_rate, steps, noise, delta)


def _setting(
    batch_size: int, epochs: float, sampling_rate: float, steps: int, noise_multiplier: float, delta: float
) -> Setting:
    curve = ACCOUNTANT.compose({PoissonGaussian(sampling_rate, noise_multiplier): steps})
    return Setting(batch_size, epochs, sampling_rate, steps, noise_multiplier, curve.epsilon(delta=delta))


# The shapes that are tried where none is chosen. A larger shape has a steadier number of runs and costs more, but for
# the Poisson distribution, which is the steadiest of all and often the cheapest for few runs.
SHAPES = (0.0, 0.5, 1.0, 3.0, math.inf)

# The most runs that are tried, and the relative tolerance of their mean.
_MOST_RUNS = 1e6
_TOLERANCE = 1e-3


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
    all_of(
        lambda: positive(epsilon=epsilon),
        lambda: open_fraction(delta=delta),
        lambda: count(steps=steps),
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


def largest_search(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    noise_multiplier: float,
    shape: float | None = None,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> SearchPlan:
    """The search of runs with this noise that keeps the budget with the largest mean number of runs, at most a million.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.

    The other arguments are those of :func:`least_noise_search`.

    Guarantee: by this accountant the search costs ``epsilon`` or less; with one part in a thousand more runs on average
    and the same shape it would cost more.

    Raises:
        TypeError, ValueError: an argument is outside its range, or even a mean of one run does not keep the budget.

    >>> plan = largest_search(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000, noise_multiplier=1.3)
    >>> plan.epsilon <= 3.0, plan.event.mean > 10
    (True, True)
    """
    all_of(lambda: positive(epsilon=epsilon), lambda: open_fraction(delta=delta), lambda: count(steps=steps))
    run = ((PoissonGaussian(sampling_rate, noise_multiplier), steps),)

    def cost(chosen: float, mean: float) -> float:
        searched = _Searched(accountant or RdpAccountant(), mean, chosen, prior_events, NO_EVENTS)
        return searched.compose(dict(run)).epsilon(delta=delta)

    means = {chosen: _largest_mean(epsilon, partial(cost, chosen)) for chosen in _shapes(shape)}
    best, mean = max(means.items(), key=lambda pair: pair[1])
    if mean < 1:
        raise ValueError(
            f"a search of one run on average, of {steps} steps of rate {sampling_rate} and noise multiplier "
            f"{noise_multiplier}, costs more than epsilon={epsilon} at delta={delta}; use more noise, fewer steps or a "
            "larger budget"
        )
    return SearchPlan(RepeatAndSelect(run, mean, best), cost(best, mean), delta)


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
    all_of(lambda: count(runs=runs), lambda: open_fraction(delta=delta))
    costs = {
        chosen: _Searched(RdpAccountant(), float(runs), chosen, NO_EVENTS, NO_EVENTS).compose(run).epsilon(delta=delta)
        for chosen in _shapes(shape)
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


def _shapes(shape: float | None) -> Iterable[float]:
    return SHAPES if shape is None else (shape,)


def _largest_mean(epsilon: float, cost: Callable[[float], float]) -> float:
    """The largest mean from 1 to the limit whose cost is at most epsilon, by bisection; 0 where there is none."""
    if cost(1.0) > epsilon:
        return 0.0
    low, high = 1.0, _MOST_RUNS
    if cost(high) <= epsilon:
        return high
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low
