"""Margin losses: hinges, which end at a margin, and the Kantorovich-Rubinstein loss, which does not."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette import errors as checks
from noisette.nn.lipschitz._targets import Loss, check_at_least_two, class_signs, single_score, true_and_other_scores

F = nn.functional


class MulticlassHinge(Loss):
    """Mean over the scores of a one-against-rest hinge, where the true class weighs as much as all others together.

    Args:
        outputs: number of scores per example, one for each class.
        margin: the margin between the true score and the others.

    >>> import torch
    >>> loss = MulticlassHinge(outputs=10, margin=1.0)
    >>> round(float(loss(torch.zeros(1, 10), torch.tensor([3]))), 4), round(loss.lipschitz(), 6)
    (0.9, 0.948683)
    """

    def __init__(self, outputs: int, margin: float = 1.0) -> None:
        super().__init__()
        check_at_least_two(outputs=outputs)
        checks.positive(margin=margin)
        self.outputs = outputs
        self.margin = margin

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        true, others = true_and_other_scores(scores, targets, self.outputs)
        hinges = (self.outputs - 1) * F.relu(self.margin / 2 - true) + F.relu(self.margin / 2 + others).sum(1)
        return hinges / self.outputs

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """sqrt((C - 1) / C), attained where every hinge is active."""
        return math.sqrt((self.outputs - 1) / self.outputs)


class MultiMargin(Loss):
    """Hinge of the true score's lead over the largest other score: ``relu(margin - z_y + max of the others)``.

    Args:
        margin: the lead at which the loss becomes zero.

    Source: Crammer & Singer 2001.

    >>> import torch
    >>> loss = MultiMargin(margin=1.0)
    >>> loss(torch.tensor([[2.0, 1.5, 0.0], [0.0, 0.0, 3.0]]), torch.tensor([0, 2])), round(loss.lipschitz(), 6)
    (tensor([0.5000, 0.0000]), 1.414214)
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        checks.positive(margin=margin)
        self.margin = margin

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        true, others = true_and_other_scores(scores, targets, None)
        return F.relu(self.margin - true + others.amax(1))

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is -1 for the true score and 1 for one other."""
        return math.sqrt(2)


class KR(Loss):
    """The Kantorovich-Rubinstein loss: minus the true score's lead over the mean of the others.

    Class weights are constant: weights from class counts of the batch would make the loss depend on other examples.

    Args:
        outputs: number of scores per example: one for each class, or 1 for one score of the two classes 0 and 1.

    Source: Serrurier et al. 2021.

    >>> import torch
    >>> KR(outputs=1)(torch.tensor([0.5, -1.0]), torch.tensor([1, 0])), KR(outputs=1).lipschitz()
    (tensor([-0.5000, -1.0000]), 1.0)
    >>> round(KR(outputs=10).lipschitz(), 6)
    1.054093
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        checks.count(outputs=outputs)
        self.outputs = outputs

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self.outputs == 1:
            return -class_signs(scores, targets) * single_score(scores)
        true, others = true_and_other_scores(scores, targets, self.outputs)
        return others.mean(1) - true

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """sqrt(C / (C - 1)), the gradient norm everywhere; 1 for one score."""
        return 1.0 if self.outputs == 1 else math.sqrt(self.outputs / (self.outputs - 1))


class HKR(Loss):
    """:class:`KR` plus alpha times a hinge: that of a single score, or :class:`MulticlassHinge`.

    Args:
        outputs: number of scores per example: one for each class, or 1 for one score of the two classes 0 and 1.
        alpha: weight of the hinge.
        margin: of the hinge; half of it on each side of zero.

    Source: Serrurier et al. 2021.

    >>> import torch
    >>> loss = HKR(outputs=1, alpha=10.0, margin=1.0)
    >>> loss(torch.tensor([0.25, -1.0]), torch.tensor([1, 0])), loss.lipschitz()
    (tensor([ 2.2500, -1.0000]), 11.0)
    """

    def __init__(self, outputs: int, alpha: float, margin: float = 1.0) -> None:
        super().__init__()
        checks.positive(alpha=alpha, margin=margin)
        self.kr = KR(outputs)
        self.hinge = _BinaryHinge(margin) if outputs == 1 else MulticlassHinge(outputs, margin)
        self.alpha = alpha

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.kr(scores, targets) + self.alpha * self.hinge(scores, targets)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The sum of both constants, because their gradients can have the same direction."""
        return self.kr.lipschitz() + self.alpha * self.hinge.lipschitz()


class _BinaryHinge(nn.Module):
    """``relu(margin / 2 - s z)`` of a single score z, where s is -1 for class 0 and 1 for class 1."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return F.relu(self.margin / 2 - class_signs(scores, targets) * single_score(scores))

    def lipschitz(self, logit_bound: float | None = None) -> float:
        return 1.0
