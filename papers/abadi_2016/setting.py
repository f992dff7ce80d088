"""Settings of the experiments, and the number of steps within a budget."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from noisette.accounting import Accountant, Event, PoissonGaussian, PrivacyCurve, steps_for
from noisette.training.recipe import ACCOUNTANTS, DataSection, PrivacySection, Recipe

DELTA = 1e-5
NO_LIMIT = 100_000.0  # epochs: the budget ends a run


@dataclass(frozen=True)
class Setting(ABC):
    """A network and how it is trained on one data set.

    ``noise`` is the noise multiplier of each layer: the deviation of its noise divided by the layer's clipping norm.
    """

    data: ClassVar[str]
    size: ClassVar[int]
    """Records in the training set, a public number."""
    layers: ClassVar[int]
    """Number of trained layers; each is clipped and noised separately."""

    lot: int
    noise: float
    clip: float

    @property
    @abstractmethod
    def seconds_a_step(self) -> float:
        """Approximate time of a step on one processor core."""

    @property
    def before(self) -> dict[Event, int]:
        """The releases before the first step."""
        return {}

    @abstractmethod
    def learning(self, seed: int, weights: str | None) -> Recipe:
        """Return the recipe of a run without data and privacy."""

    @property
    def sampling_rate(self) -> float:
        """Probability that a record is in a lot."""
        return self.lot / self.size

    @property
    def step(self) -> PoissonGaussian:
        """The event of one step: all layers use the same lot, so they are one Gaussian mechanism."""
        return PoissonGaussian(self.sampling_rate, self.noise / math.sqrt(self.layers))

    def epochs(self, steps: int) -> float:
        """Convert steps to passes over the data."""
        return steps * self.sampling_rate

    def compose(self, steps: int, accountant: Accountant) -> PrivacyCurve:
        """Compose all releases of the run up to this step."""
        return accountant.compose({**self.before, self.step: steps})

    def steps_within(self, epsilon: float, *, accountant: Accountant) -> int:
        """Return the largest number of steps within the budget, at the paper's delta."""
        return _steps_within(self, epsilon, accountant)


@cache
def _steps_within(setting: Setting, epsilon: float, accountant: Accountant) -> int:
    return steps_for(
        epsilon=epsilon,
        delta=DELTA,
        sampling_rate=setting.sampling_rate,
        noise_multiplier=setting.step.noise_multiplier,
        accountant=accountant,
        prior_events=setting.before,
    )


@dataclass(frozen=True)
class Plan:
    """A planned run: a setting, trained from the initial weights of a seed until an accountant ends the budget.

    ``weights`` is the file of public weights from which the network starts, if the experiment has one.
    """

    setting: Setting
    seed: int
    epsilon: float
    accountant: str
    weights: str | None = field(default=None, compare=False)

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return self.setting.steps_within(self.epsilon, accountant=ACCOUNTANTS[self.accountant])

    @property
    def seconds(self) -> float:
        """Approximate time on one processor core."""
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
