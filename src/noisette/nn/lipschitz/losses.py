"""Lipschitz losses of probabilities and of directions.

All losses of this package take scores, (b, outputs), and targets, (b,), and return one loss per example, (b,). For a
model with one output, scores are (b, 1) or (b,). Where a target is NaN, or not one of the classes, the loss and its
gradient are NaN, so that the example contributes nothing and stops nothing. Their Lipschitz constants hold for all
scores and labels, and are public: no loss is divided by a count over the batch.

Source: Bethune et al. 2024, "DP-SGD Without Clipping: The Lipschitz Neural Network Way", section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.nn.lipschitz._targets import (
    Loss,
    check_at_least_two,
    class_signs,
    class_targets,
    score_norm_bound,
    single_score,
    true_and_other_scores,
)

F = nn.functional


class TauCrossEntropy(nn.Module):
    """Softmax cross-entropy of scores times tau, divided by tau. Targets are classes.

    A large tau favours accuracy; a small one favours wide margins, and so robustness.

    Args:
        tau: the inverse of the temperature.
        classes: number of classes. With it, a bound on the scores gives a smaller Lipschitz constant.

    >>> loss = TauCrossEntropy(tau=8.0)
    >>> loss(torch.tensor([[0.2, -0.1], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.0109, 0.0866])
    >>> round(loss.lipschitz(), 5), round(TauCrossEntropy(tau=1.0, classes=10).lipschitz(logit_bound=1.0), 5)
    (1.41421, 1.37702)
    """

    def __init__(self, tau: float, classes: int | None = None) -> None:
        super().__init__()
        checks.positive(tau=tau)
        if classes is not None:
            check_at_least_two(classes=classes)
        self.tau = tau
        self.classes = classes

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        classes, known = class_targets(scores, targets, self.classes)
        return F.cross_entropy(self.tau * scores, classes, reduction="none") / self.tau * known

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is p - e_y, of norm at most sqrt(2) (1 - p_y); a bound on the scores keeps p_y above zero."""
        norm = score_norm_bound(logit_bound)
        if self.classes is None or norm == math.inf:
            return math.sqrt(2)
        # Scores of norm R differ by at most sqrt(2) R, so (1 - p_y) / p_y is at most (C - 1) exp(sqrt(2) tau R).
        log_odds = math.log(self.classes - 1) + math.sqrt(2) * self.tau * norm
        return math.sqrt(2) / (1 + math.exp(-log_odds))

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}"


class TauBCE(Loss):
    """Logistic loss of one score times tau, divided by tau. Targets are 0 and 1.

    Args:
        tau: the inverse of the temperature.

    >>> loss = TauBCE(tau=2.0)
    >>> loss(torch.tensor([0.5, -1.0]), torch.tensor([1, 1])), loss.lipschitz()
    (tensor([0.1566, 1.0635]), 1.0)
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        checks.positive(tau=tau)
        self.tau = tau

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return -F.logsigmoid(self.tau * class_signs(scores, targets) * single_score(scores)) / self.tau

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The absolute gradient is the predicted probability of the other class."""
        return 1 / (1 + math.exp(-self.tau * score_norm_bound(logit_bound)))


class KCosine(Loss):
    """Minus the cosine between the scores and the axis of the true class; scores of a norm below k are divided by k.

    Args:
        k: the norm of the scores above which the loss is a cosine.

    >>> loss = KCosine(k=2.0)
    >>> loss(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([0, 0])), loss.lipschitz()
    (tensor([-0.6000, -0.5000]), 0.5)
    """

    def __init__(self, k: float) -> None:
        super().__init__()
        checks.positive(k=k)
        self.k = k

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        true, _ = true_and_other_scores(scores, targets, None)
        return -true / torch.linalg.vector_norm(scores, dim=1).clamp(min=self.k)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """1/k, attained where the scores have norm k."""
        return 1 / self.k
