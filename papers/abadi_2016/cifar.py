"""The experiment on CIFAR-10: convolutions learnt from other, public images, and privately trained linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noisette.training.recipe import ModelSection, Recipe, TrainingSection
from papers.abadi_2016.setting import NO_LIMIT, Setting

_WEIGHTS = 1_036_810  # of the linear layers


@dataclass(frozen=True)
class Cifar(Setting):
    """The three linear layers behind frozen convolutions; the paper does not print its learning rate."""

    data: ClassVar[str] = "cifar10"
    size: ClassVar[int] = 50_000
    layers: ClassVar[int] = 3

    lot: int = 2000
    noise: float = 6.0
    clip: float = 3.0
    lr: float = 0.2

    @property
    def seconds_a_step(self) -> float:
        """From runs on a small machine, where the features are computed once; one term per product, one per weight."""
        return 7e-11 * self.lot * _WEIGHTS + 1e-8 * _WEIGHTS

    def learning(self, seed: int, weights: str | None) -> Recipe:
        """Return the recipe of a run without data and privacy."""
        return Recipe(
            model=ModelSection("cifar-tutorial", weights),
            training=TrainingSection(epochs=NO_LIMIT, batch_size=self.lot, lr=self.lr, cosine=False, seed=seed),
        )
