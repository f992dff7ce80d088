"""Learning rates and averages of weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from noisette.lipschitz.projections import project
from noisette.training.recipe import TrainingSection


def learning_rate(settings: TrainingSection, *, spent: int, steps: int, sampling_rate: float) -> float:
    """The learning rate of the step after ``spent`` of ``steps``, also of lost ones: a run ends at the planned rate."""
    assert settings.lr is not None, "a run resolves it before its first step"
    if settings.lr_end is not None:
        moved = min(1.0, spent / round(settings.lr_epochs / sampling_rate))
        return settings.lr + (settings.lr_end - settings.lr) * moved
    return settings.lr * ((1 + math.cos(math.pi * spent / steps)) / 2 if settings.cosine else 1)


class WeightAverage(AveragedModel):
    """The average of a model's weights that a recipe asks for; ``module`` is the model with it.

    With ``averaging`` d it is exponential: after step t the average moves by 1 - min(d, t / (9 + t)) towards the
    weights, so the first ones, which are far from good, soon leave it. With ``average_last`` s it is the mean of the
    weights of the last share s of the steps, and before these the weights themselves.

    Source: Polyak & Juditsky 1992; for private training De et al. 2022, section 3.2.
    """

    def __init__(self, model: nn.Module, settings: TrainingSection) -> None:
        self._decay, self._last = settings.averaging, settings.average_last
        super().__init__(model, avg_fn=self._moved)

    def update(self, model: nn.Module, *, spent: int, steps: int) -> None:
        """Take in the weights after step ``spent`` of ``steps``."""
        if self._last and spent <= (1 - self._last) * steps + 1:
            self.n_averaged.zero_()  # this update copies the weights
        self.update_parameters(model)
        project(self.module)  # an average of orthogonal weights is not orthogonal

    def _moved(self, kept: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        weights = int(count)
        share = 1 / (1 + weights) if self._last else 1 - min(self._decay, (1 + weights) / (10 + weights))
        return torch.lerp(kept, current, share)
