"""Losses with known Lipschitz constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.propagation import Shown

__all__ = ["HuberLoss", "TauBCE", "TauCrossEntropy"]

F = nn.functional


def score_norm_bound(logit_bound: float | None) -> float:
    """The bound on the norm of the scores; infinite if ``None``."""
    if logit_bound is not None and not logit_bound >= 0:
        raise ValueError(f"expected logit_bound >= 0, got logit_bound={logit_bound}")
    return math.inf if logit_bound is None else logit_bound


def _whole_below(classes: int, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets, and 1 for each, or NaN where it is no class.

    A loss that is multiplied by it, and its gradient, become NaN: such an example contributes nothing to a bounded sum.
    An error would show that the record is there.
    """
    _check_one_per_example(scores, targets)
    known = (targets >= 0) & (targets < classes) & (targets == targets.long())
    return torch.where(known, targets, 0).long(), one_or_nan(known, scores)


def one_or_nan(known: Tensor, scores: Tensor) -> Tensor:
    """1 where a target is known, else NaN, in the precision of the scores, shape (b,)."""
    return torch.where(known, 1.0, math.nan).to(scores.dtype)


def _check_one_per_example(scores: Tensor, targets: Tensor) -> None:
    if targets.shape != scores.shape[:1]:
        raise ValueError(
            f"expected one target for each of {len(scores)} examples, got targets of shape {tuple(targets.shape)}"
        )


def single_score(scores: Tensor) -> Tensor:
    """The one score of each example, shape (b,)."""
    if scores.dim() == 1:
        return scores
    if scores.dim() != 2 or scores.shape[1] != 1:
        raise ValueError(f"expected one score for each example, (b,) or (b, 1), got shape {tuple(scores.shape)}")
    return scores.squeeze(1)


class TauCrossEntropy(Shown):
    """Softmax cross-entropy of scores times tau, divided by tau. Targets are classes.

    A large tau favours accuracy; a small one favours wide margins, and so robustness. With the number of ``classes``, a
    bound on the scores gives a smaller Lipschitz constant.

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
            checks.count(classes=classes)
        if classes == 1:
            raise ValueError("expected classes >= 2, got classes=1; use TauBCE for two classes on one score")
        self.tau, self.classes = tau, classes

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        outputs = scores.shape[1] if scores.dim() == 2 else 0
        if outputs < 2 or self.classes not in (None, outputs):
            raise ValueError(f"expected scores of shape (b, {self.classes or 'classes'}), got {tuple(scores.shape)}")
        classes, known = _whole_below(outputs, scores, targets)
        return F.cross_entropy(self.tau * scores, classes, reduction="none") / self.tau * known

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is p - e_y, of norm at most sqrt(2) (1 - p_y); a bound on the scores keeps p_y above zero."""
        norm = score_norm_bound(logit_bound)
        if self.classes is None or norm == math.inf:
            return math.sqrt(2)
        # Scores of norm R differ by at most sqrt(2) R, so (1 - p_y) / p_y is at most (C - 1) exp(sqrt(2) tau R).
        log_odds = math.log(self.classes - 1) + math.sqrt(2) * self.tau * norm
        return math.sqrt(2) / (1 + math.exp(-log_odds))


class TauBCE(Shown):
    """Logistic loss of one score times tau, divided by tau. Targets are 0 and 1.

    >>> loss = TauBCE(tau=2.0)
    >>> loss(torch.tensor([0.5, -1.0]), torch.tensor([1, 1])), loss.lipschitz()
    (tensor([0.1566, 1.0635]), 1.0)
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        checks.positive(tau=tau)
        self.tau = tau

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        classes, known = _whole_below(2, scores, targets)
        return -F.logsigmoid(self.tau * (2 * classes - 1) * known * single_score(scores)) / self.tau

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The absolute gradient is the predicted probability of the other class."""
        return 1 / (1 + math.exp(-self.tau * score_norm_bound(logit_bound)))


class HuberLoss(Shown):
    """Half the squared distance of one score to the target, a number; linear beyond ``delta``.

    >>> loss = HuberLoss(delta=0.5)
    >>> loss(torch.tensor([0.2, 2.0]), torch.tensor([0.0, 0.0])), loss.lipschitz()
    (tensor([0.0200, 0.8750]), 0.5)
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        checks.positive(delta=delta)
        self.delta = delta

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        _check_one_per_example(scores, targets)
        finite = one_or_nan(targets.isfinite(), scores)
        distance = (single_score(scores) - targets.to(scores.dtype)) * finite
        return F.huber_loss(distance, torch.zeros_like(distance), reduction="none", delta=self.delta)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The absolute gradient is at most delta."""
        return self.delta
