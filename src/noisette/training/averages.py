"""Averages of the weights of the steps, which is post-processing and costs no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from noisette.lipschitz.project import project
from noisette.training.recipe import TrainingSection


class WeightAverage:
    """The average of a model's weights that a recipe asks for.

    With ``averaging`` d it is exponential: after step t the average moves by 1 - min(d, t / (9 + t)) towards the
    weights, so the first ones, which are far from good, soon leave it. With ``average_last`` s it is the mean of the
    weights of the last share s of the steps, and before these the weights themselves.

    Args:
        model: what is trained; its average is a copy.
        settings: those of the recipe, with one of the two.

    Source: Polyak & Juditsky 1992; for private training De et al. 2022, section 3.2.
    """

    def __init__(self, model: nn.Module, settings: TrainingSection) -> None:
        self._decay, self._last = settings.averaging, settings.average_last
        self._kept = AveragedModel(model, avg_fn=self._moved)

    @property
    def model(self) -> nn.Module:
        """The model with the averaged weights."""
        return self._kept.module

    def update(self, model: nn.Module, *, spent: int, steps: int) -> None:
        """Take in the weights after step ``spent`` of ``steps``."""
        if self._last and spent <= (1 - self._last) * steps + 1:
            self._kept.n_averaged.zero_()  # this update copies the weights
        self._kept.update_parameters(model)
        project(self.model)  # an average of orthogonal weights is not orthogonal

    def state(self) -> dict[str, Tensor]:
        """The average, and how many weights are in it."""
        return self._kept.state_dict()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self._kept.load_state_dict(state)

    def _moved(self, kept: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        weights = int(count)
        share = 1 / (1 + weights) if self._last else 1 - min(self._decay, (1 + weights) / (10 + weights))
        return torch.lerp(kept, current, share)
