"""Settings for training on a declared number of records: the noise for a budget, and the cost of a given noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from noisette.accounting.accountants.pld import PldAccountant
from noisette.accounting.calibrate import noise_multiplier_for
from noisette.accounting.events import PoissonGaussian
from noisette.accounting.sampling_plan import schedule

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
