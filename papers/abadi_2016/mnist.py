"""The experiment on MNIST: private principal components and one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noisette.accounting import Event, Gaussian
from noisette.training.recipe import ModelSection, ProjectionSection, Recipe, TrainingSection
from papers.abadi_2016.setting import NO_LIMIT, Setting

_PIXELS, _CLASSES = 784, 10


@dataclass(frozen=True)
class Mnist(Setting):
    """The defaults are the reference of the paper's sweeps.

    ``lr`` decreases linearly to ``lr_end`` over ten epochs and then stays constant; ``pca_noise`` is the noise
    multiplier of the principal components; ``components=0`` trains on the pixels.
    """

    data: ClassVar[str] = "mnist"
    size: ClassVar[int] = 60_000
    layers: ClassVar[int] = 2

    lot: int = 600
    noise: float = 4.0
    clip: float = 4.0
    components: int = 60
    units: int = 1000
    lr: float = 0.1
    lr_end: float = 0.052
    pca_noise: float = 7.0

    @property
    def model(self) -> str:
        """The name of the network in a recipe."""
        return "mlp1000" if self.units == 1000 else f"papers.abadi_2016.networks:units_{self.units}"

    @property
    def before(self) -> dict[Event, int]:
        """The release of the principal components."""
        return {Gaussian(self.pca_noise): 1} if self.components else {}

    @property
    def seconds_a_step(self) -> float:
        """From runs on a small machine: one term per step, per product of the network and per noised weight."""
        weights = self.units * ((self.components or _PIXELS) + _CLASSES)
        return 1e-3 + 2.8e-10 * self.lot * weights + 3e-8 * weights

    def learning(self, seed: int, weights: str | None) -> Recipe:
        """Return the recipe of a run without data and privacy."""
        projection = ProjectionSection(self.components, self.pca_noise) if self.components else ProjectionSection()
        return Recipe(
            model=ModelSection(self.model, weights),
            projection=projection,
            training=TrainingSection(
                epochs=NO_LIMIT, batch_size=self.lot, lr=self.lr, lr_end=self.lr_end, lr_epochs=10.0, seed=seed
            ),
        )
