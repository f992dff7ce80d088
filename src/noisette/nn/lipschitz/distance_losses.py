"""Losses of distances to targets, which are numbers, or classes in one-hot encoding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.nn.lipschitz._targets import Loss, one_or_nan, residuals, score_norm_bound

F = nn.functional


class MAE(Loss):
    """Sum over the outputs of the absolute distance to the target.

    Args:
        outputs: number of scores per example. With 1, targets are numbers; with more, classes in one-hot encoding.

    >>> import torch
    >>> MAE(outputs=1)(torch.tensor([[0.5], [-1.0]]), torch.tensor([1.5, 0.0])), MAE(outputs=4).lipschitz()
    (tensor([1., 1.]), 2.0)
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        checks.count(outputs=outputs)
        self.outputs = outputs

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return residuals(scores, targets, self.outputs).abs().sum(1)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient has an absolute value of 1 for each output."""
        return math.sqrt(self.outputs)


class HuberLoss(Loss):
    """Sum over the outputs of half the squared distance to the target, linear beyond ``delta``.

    Args:
        outputs: number of scores per example. With 1, targets are numbers; with more, classes in one-hot encoding.
        delta: the distance beyond which the loss is linear.

    >>> import torch
    >>> loss = HuberLoss(outputs=1, delta=0.5)
    >>> loss(torch.tensor([0.2, 2.0]), torch.tensor([0.0, 0.0])), loss.lipschitz()
    (tensor([0.0200, 0.8750]), 0.5)
    """

    def __init__(self, outputs: int, delta: float = 1.0) -> None:
        super().__init__()
        checks.count(outputs=outputs)
        checks.positive(delta=delta)
        self.outputs = outputs
        self.delta = delta

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        distance = residuals(scores, targets, self.outputs)
        return F.huber_loss(distance, torch.zeros_like(distance), reduction="none", delta=self.delta).sum(1)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient has an absolute value of at most delta for each output."""
        return self.delta * math.sqrt(self.outputs)


class MSE(Loss):
    """Squared distance of the scores to the target. It has a Lipschitz constant only if the scores have a bound.

    Args:
        outputs: number of scores per example. With 1, targets are numbers; with more, classes in one-hot encoding.
        target_bound: bound on the absolute value of a target that is a number; for classes it is at least 1. An example
            with a larger target has a loss of NaN, and contributes nothing: scale or clamp targets by public constants.

    >>> import torch
    >>> loss = MSE(outputs=1, target_bound=2.0)
    >>> loss(torch.tensor([0.5]), torch.tensor([2.0])), loss.lipschitz(logit_bound=3.0)
    (tensor([2.2500]), 10.0)
    """

    def __init__(self, outputs: int, target_bound: float = 1.0) -> None:
        super().__init__()
        checks.count(outputs=outputs)
        checks.positive(target_bound=target_bound)
        if outputs > 1 and target_bound < 1:
            raise ValueError(f"targets that are classes need target_bound >= 1, got target_bound={target_bound}")
        self.outputs = outputs
        self.target_bound = target_bound

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        losses = residuals(scores, targets, self.outputs).square().sum(1)
        return losses * one_or_nan(targets.abs() <= self.target_bound, losses) if self.outputs == 1 else losses

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """Twice the largest distance.

        Raises:
            ValueError: the scores have no bound.
        """
        if (norm := score_norm_bound(logit_bound)) == math.inf:
            raise ValueError(
                "MSE has no Lipschitz constant without a bound on the scores: put a BoundedInput in front of the model "
                "or a NormCap behind it, or use HuberLoss or MAE"
            )
        return 2 * (norm + self.target_bound)
