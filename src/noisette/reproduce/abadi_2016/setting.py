"""What the study varies, and the settings it leaves alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from noisette.accounting import TAIL_SHARE, Accountant, Event, Gaussian, PoissonGaussian, PrivacyCurve, steps_for
from noisette.recipe import (
    ACCOUNTANTS,
    DataSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    Recipe,
    TrainingSection,
)

SIZE = 60_000  # training images of MNIST
DELTA = 1e-5
LAYERS = 2  # each is clipped and noised on its own
_NO_LIMIT = 100_000.0  # epochs: the budget ends a run


@dataclass(frozen=True)
class Setting:
    """A network and how it is trained; the defaults are the reference of the paper's sweeps.

    ``lr`` falls to ``lr_end`` in a line over ten epochs and stays there. ``noise`` and ``pca_noise`` are standard
    deviations in units of the bound, of each layer's gradient and of the matrix of the principal components;
    ``components=0`` trains on the pixels themselves.
    """

    components: int = 60
    units: int = 1000
    lot: int = 600
    lr: float = 0.1
    lr_end: float = 0.052
    clip: float = 4.0
    noise: float = 4.0
    pca_noise: float = 7.0

    @property
    def sampling_rate(self) -> float:
        """Probability that an image is in a lot."""
        return self.lot / SIZE

    @property
    def model(self) -> str:
        """The network, as a recipe names it."""
        return "mlp1000" if self.units == 1000 else f"noisette.reproduce.abadi_2016.networks:units_{self.units}"

    @property
    def step(self) -> PoissonGaussian:
        """One step: both layers see the same lot, so they are one Gaussian mechanism."""
        return PoissonGaussian(self.sampling_rate, self.noise / math.sqrt(LAYERS))

    @property
    def projection(self) -> dict[Event, int]:
        """What is released before the first step."""
        return {Gaussian(self.pca_noise): 1} if self.components else {}

    def epochs(self, steps: int) -> float:
        """So many steps in passes over the data."""
        return steps * self.sampling_rate

    def price(self, steps: int, accountant: Accountant) -> PrivacyCurve:
        """What projection and steps cost together."""
        return accountant.price({**self.projection, self.step: steps})

    def steps_within(self, epsilon: float, *, accountant: Accountant) -> int:
        """Most steps that the budget pays for beside the projection, at the study's delta."""
        return _steps_within(self, epsilon, accountant)


@cache
def _steps_within(setting: Setting, epsilon: float, accountant: Accountant) -> int:
    return steps_for(
        epsilon=epsilon,
        delta=DELTA * (1 - TAIL_SHARE),
        sampling_rate=setting.sampling_rate,
        noise_multiplier=setting.step.noise_multiplier,
        accountant=accountant,
        besides=setting.projection,
    )


@dataclass(frozen=True)
class Plan:
    """A run to be made: a setting, trained from the weights of a seed until an accountant says that the budget ends."""

    setting: Setting
    seed: int
    epsilon: float
    accountant: str

    @property
    def steps(self) -> int:
        """How long the run is."""
        return self.setting.steps_within(self.epsilon, accountant=ACCOUNTANTS[self.accountant])

    @property
    def seconds(self) -> float:
        """About how long it takes on one processor core."""
        setting = self.setting
        weights = (setting.components or 784) * setting.units + 10 * setting.units
        return self.steps * (_SECONDS_A_STEP + _SECONDS_A_PRODUCT * setting.lot * weights + _SECONDS_A_WEIGHT * weights)

    @property
    def recipe(self) -> Recipe:
        """The run as a recipe."""
        setting = self.setting
        return Recipe(
            data=DataSection("mnist"),
            model=ModelSection(setting.model),
            projection=ProjectionSection(setting.components, setting.pca_noise)
            if setting.components
            else ProjectionSection(),
            privacy=PrivacySection(
                epsilon=self.epsilon,
                delta=DELTA,
                noise_multiplier=setting.noise,
                max_grad_norm=setting.clip,
                per_layer=True,
                accountant=self.accountant,
            ),
            training=TrainingSection(
                epochs=_NO_LIMIT,
                batch_size=setting.lot,
                lr=setting.lr,
                lr_end=setting.lr_end,
                lr_epochs=10.0,
                seed=self.seed,
            ),
        )


# From runs on one core of a small machine.
_SECONDS_A_STEP, _SECONDS_A_PRODUCT, _SECONDS_A_WEIGHT = 1e-3, 2.8e-10, 3e-8
