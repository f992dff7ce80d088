"""Optimizers, learning rates and averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from noisette import errors as checks
from noisette.lipschitz.projections import project
from noisette.training.recipe import TrainingSection


class AdamBC(Optimizer):
    """Adam that subtracts the known variance of the noise from its second moments.

    The noise of a private gradient is as large in each element, so the plain second moments, which contain it, are
    almost equal and Adam becomes SGD with momentum. Here an element moves by
    ``lr * m / sqrt(max(v - n, floor * n))``, where m and v are Adam's means of g and g^2, without their bias towards
    zero, and n is the same mean of the noise's variance.

    Give it to :func:`noisette.privatize`: the run tells it the deviation of the noise on each parameter before each
    step, also where that changes, as with clipping by layer, an adaptive clipping norm or Lipschitz bounds.

    Args:
        betas: the decays of the two means.
        floor: the least second moment that remains, as a share of the noise's variance; below it an element cannot be
            told from noise. A larger one takes smaller steps there. The paper gives it in units of a squared gradient.

    Guarantee: none of its own; it uses released gradients and public numbers alone.
    Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
    correction)", algorithm 1.

    Raises:
        ValueError: a number is outside its domain.
        RuntimeError: when stepping: no private run has told the deviations of the noise.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 0.01,
    ) -> None:
        first, second = betas
        checks.all_of(
            lambda: checks.positive(lr=lr, floor=floor), lambda: checks.below_one(first_beta=first, second_beta=second)
        )
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor})
        self._deviations: dict[int, float] = {}

    def take_deviations(self, deviations: Mapping[int, float]) -> None:
        """Take the deviation of the noise on each element of ``.grad``, by ``id`` of the parameter."""
        self._deviations = dict(deviations)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (no closure)
        if closure is not None:
            raise ValueError("a closure computes gradients that are not private; call step() without one")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, p.grad, group)

    def _move(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        if id(p) not in self._deviations:
            raise RuntimeError(
                "AdamBC needs the deviation of the noise on each gradient, which a private run tells it: give this "
                "optimizer itself to noisette.privatize, not one that wraps it"
            )
        state, (first, second) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float64)
            state["noise"] = torch.zeros((), dtype=torch.float64)  # the mean of the noise's variance
            state["mean"] = torch.zeros_like(p)
            state["square"] = torch.zeros_like(p)
        state["step"] += 1
        state["noise"].mul_(second).add_((1 - second) * self._deviations[id(p)] ** 2)
        state["mean"].lerp_(grad, 1 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        seen_first, seen_second = (1 - beta ** state["step"].item() for beta in (first, second))
        noise = state["noise"].item()
        left = (state["square"] - noise).clamp_(min=group["floor"] * noise).div_(seen_second)
        p.addcdiv_(state["mean"], left.sqrt_(), value=-group["lr"] / seen_first)


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
    return AdamBC(parameters, lr=settings.lr, floor=0.01 if settings.floor is None else settings.floor)


def learning_rate(settings: TrainingSection, *, spent: int, steps: int, sampling_rate: float) -> float:
    """The learning rate of the step after ``spent`` of ``steps``.

    It follows the steps that epsilon covers, so that a resumed run that lost some still ends at the planned rate.

    >>> settings = TrainingSection(lr=1.0, cosine=False, warmup=0.5)
    >>> [learning_rate(settings, spent=n, steps=8, sampling_rate=0.1) for n in (0, 1, 3, 4, 7)]
    [0.25, 0.5, 1.0, 1.0, 1.0]
    """
    assert settings.lr is not None, "a run resolves it before its first step"
    rate = settings.lr
    if settings.lr_end is not None:
        moved = min(1.0, spent / round(settings.lr_epochs / sampling_rate))
        rate += (settings.lr_end - settings.lr) * moved
    elif settings.cosine:
        rate *= (1 + math.cos(math.pi * spent / steps)) / 2
    rising = settings.warmup * steps
    return rate * (spent + 1) / rising if spent + 1 < rising else rate


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
