"""What a study varies, what it leaves alone, and how long a budget lasts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from noisette.accounting import TAIL_SHARE, Accountant, Event, PoissonGaussian, PrivacyCurve, steps_for
from noisette.training.recipe import ACCOUNTANTS, DataSection, PrivacySection, Recipe

DELTA = 1e-5
NO_LIMIT = 100_000.0  # epochs: the budget ends a run


@dataclass(frozen=True)
class Setting(ABC):
    """A network and how it is trained on one data set.

    ``noise`` is the standard deviation of the noise on each layer's gradient, in units of the layer's bound.
    """

    data: ClassVar[str]
    size: ClassVar[int]
    """Records in the training set, a public number."""
    layers: ClassVar[int]
    """How many are trained, each clipped and noised on its own."""

    lot: int
    noise: float
    clip: float

    @property
    @abstractmethod
    def seconds_a_step(self) -> float:
        """About how long a step takes on one processor core."""

    @property
    def before(self) -> dict[Event, int]:
        """What is released before the first step."""
        return {}

    @abstractmethod
    def learning(self, seed: int, weights: str | None) -> Recipe:
        """All of a run's recipe but data and privacy."""

    @property
    def sampling_rate(self) -> float:
        """Probability that a record is in a lot."""
        return self.lot / self.size

    @property
    def step(self) -> PoissonGaussian:
        """One step: all layers see the same lot, so they are one Gaussian mechanism."""
        return PoissonGaussian(self.sampling_rate, self.noise / math.sqrt(self.layers))

    def epochs(self, steps: int) -> float:
        """So many steps in passes over the data."""
        return steps * self.sampling_rate

    def compose(self, steps: int, accountant: Accountant) -> PrivacyCurve:
        """What the whole run costs, up to this step."""
        return accountant.compose({**self.before, self.step: steps})

    def steps_within(self, epsilon: float, *, accountant: Accountant) -> int:
        """Most steps that the budget pays for, at the study's delta."""
        return _steps_within(self, epsilon, accountant)


@cache
def _steps_within(setting: Setting, epsilon: float, accountant: Accountant) -> int:
    return steps_for(
        epsilon=epsilon,
        delta=DELTA * (1 - TAIL_SHARE),
        sampling_rate=setting.sampling_rate,
        noise_multiplier=setting.step.noise_multiplier,
        accountant=accountant,
        prior_events=setting.before,
    )


@dataclass(frozen=True)
class Plan:
    """A run to be made: a setting, trained from the weights of a seed until an accountant says that the budget ends.

    ``weights`` is the file that the network begins with, if the study has one.
    """

    setting: Setting
    seed: int
    epsilon: float
    accountant: str
    weights: str | None = field(default=None, compare=False)

    @property
    def steps(self) -> int:
        """How long the run is."""
        return self.setting.steps_within(self.epsilon, accountant=ACCOUNTANTS[self.accountant])

    @property
    def seconds(self) -> float:
        """About how long it takes on one processor core."""
        return self.steps * self.setting.seconds_a_step

    @property
    def recipe(self) -> Recipe:
        """The run as a recipe."""
        learning = self.setting.learning(self.seed, self.weights)
        return Recipe(
            data=DataSection(self.setting.data),
            model=learning.model,
            projection=learning.projection,
            privacy=PrivacySection(
                epsilon=self.epsilon,
                delta=DELTA,
                noise_multiplier=self.setting.noise,
                max_grad_norm=self.setting.clip,
                clipping="per-layer",
                accountant=self.accountant,
            ),
            training=learning.training,
        )
