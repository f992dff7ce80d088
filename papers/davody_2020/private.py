"""Private training of a network at a budget, or with the noise of that budget and no guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

from noisette.accounting import noise_multiplier_for
from noisette.accounting.calibrate import schedule
from noisette.training.recipe import (
    AugmentationSection,
    DataSection,
    ModelSection,
    PrivacySection,
    PublicSection,
    Recipe,
    TrainingSection,
)
from papers.davody_2020.schedules import Schedule

DELTA = 1e-5


@dataclass(frozen=True)
class Private:
    """A network, its norm, and how it is trained privately.

    ``epsilon`` is the budget that the noise is calibrated to, by the privacy loss distribution and with delta 1e-5; a
    run whose norm mixes the examples has that noise and no guarantee. Training images move at random by up to ``shift``
    pixels along each axis. ``public`` is the data set that the norm's statistics come from. ``pretrained`` networks
    begin with weights from a file of public ones, and train their head alone.
    """

    kind: ClassVar[str] = "private"

    data: str
    model: str
    batch_norm: str | None
    epsilon: float
    lot: int
    epochs: float
    lr: float
    momentum: float
    clip: float
    averaging: float = 0.0
    shift: int = 0
    public: str | None = None
    public_examples: int = 128
    pretrained: bool = False

    @classmethod
    def scheduled(
        cls,
        schedule: Schedule,
        row: str,
        *,
        data: str,
        model: str,
        epsilon: float,
        batch_norm: str | None = None,
        shift: int = 0,
        public: str | None = None,
        pretrained: bool = False,
    ) -> Self:
        """The network of a row of a table, trained by the table's schedule at this budget."""
        return cls(
            data=data,
            model=model,
            batch_norm=batch_norm,
            epsilon=epsilon,
            lot=schedule.lot,
            epochs=schedule.epochs,
            lr=schedule.lr_of.get(row, schedule.lr),
            momentum=schedule.momentum,
            clip=schedule.clip,
            averaging=schedule.averaging,
            shift=shift,
            public=public,
            pretrained=pretrained,
        )

    @property
    def guaranteed(self) -> bool:
        """Whether the run keeps its budget."""
        return self.batch_norm != "mixture"

    def noise_multiplier(self, size: int) -> float:
        """The noise multiplier that keeps the budget if each of ``size`` records moves its own gradient alone."""
        return _noise(self.epsilon, *schedule(self.lot, None, None, size, self.epochs))

    def recipe(self, seed: int, weights: str | None = None) -> Recipe:
        """The run as a recipe, which exists only for runs with a guarantee."""
        return Recipe(
            data=DataSection(self.data),
            model=ModelSection(self.model, weights, batch_norm=self.batch_norm),
            public=PublicSection(self.public, self.public_examples) if self.public else PublicSection(),
            privacy=PrivacySection(epsilon=self.epsilon, delta=DELTA, max_grad_norm=self.clip),
            augmentation=AugmentationSection(shift=self.shift),
            training=TrainingSection(
                epochs=self.epochs,
                batch_size=self.lot,
                lr=self.lr,
                momentum=self.momentum,
                averaging=self.averaging,
                seed=seed,
            ),
        )


@cache
def _noise(epsilon: float, sampling_rate: float, steps: int) -> float:
    delta = DELTA
    return noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
