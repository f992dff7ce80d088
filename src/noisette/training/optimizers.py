"""The optimizers that a recipe can name, made from its settings. They see released gradients only."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn, optim

from noisette.training.adam_bc import AdamBC
from noisette.training.recipe.sections import TrainingSection


def sgd(parameters: Iterable[nn.Parameter], settings: TrainingSection) -> optim.Optimizer:
    """Stochastic gradient descent with the momentum of the recipe; the rate is set before each step."""
    return optim.SGD(parameters, lr=settings.lr or 1.0, momentum=settings.momentum)


def adam(parameters: Iterable[nn.Parameter], settings: TrainingSection) -> optim.Optimizer:
    """Adam with the constants of its authors."""
    assert settings.lr is not None, "the recipe is checked"
    return optim.Adam(parameters, lr=settings.lr)


def adam_bc(parameters: Iterable[nn.Parameter], settings: TrainingSection) -> optim.Optimizer:
    """Adam without the variance of the noise in its second moments."""
    assert settings.lr is not None, "the recipe is checked"
    if settings.floor is None:
        return AdamBC(parameters, lr=settings.lr)
    return AdamBC(parameters, lr=settings.lr, floor=settings.floor)
