"""Losses of chances and of directions, whose gradient at the scores of one example has a known bound.

All losses of this package are called with scores, (b, outputs), and targets, (b,), and give one loss per example,
(b,). Where the model has one output, scores are (b, 1) or (b,). Their constants hold for whatever scores and labels,
and are fixed and public: nothing is divided by anything that is counted in a batch.

Source: Bethune et al. 2024, "DP-SGD Without Clipping: The Lipschitz Neural Network Way", section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.nn.lipschitz._targets import (
    check_classes,
    check_several,
    infinite_unless_given,
    only,
    own_and_others,
    signs,
)

F = nn.functional


class TauCrossEntropy(nn.Module):
    """Softmax cross-entropy of scores times tau, divided by tau. Targets are classes.

    A large tau is for accuracy; a small one asks for wide margins, and with them for robustness.

    Args:
        tau: the inverse of a temperature.
        classes: how many there are. Naming them lets a bound on the scores tighten the constant.

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
            check_several(classes=classes)
        self.tau = tau
        self.classes = classes

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        check_classes(scores, targets, self.classes)
        return F.cross_entropy(self.tau * scores, targets.long(), reduction="none") / self.tau

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is p - e_y: at most sqrt(2) (1 - p_y), where bounded scores keep p_y away from zero."""
        reach = infinite_unless_given(logit_bound)
        if self.classes is None or reach == math.inf:
            return math.sqrt(2)
        odds = math.log(self.classes - 1) + math.sqrt(2) * self.tau * reach  # of all other classes, at most
        return math.sqrt(2) / (1 + math.exp(-odds))

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}"


class TauBCE(nn.Module):
    """Logistic loss of one score times tau, divided by tau. Targets are 0 and 1.

    Args:
        tau: the inverse of a temperature.

    >>> loss = TauBCE(tau=2.0)
    >>> loss(torch.tensor([0.5, -1.0]), torch.tensor([1, 1])), loss.lipschitz()
    (tensor([0.1566, 1.0635]), 1.0)
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        checks.positive(tau=tau)
        self.tau = tau

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return -F.logsigmoid(self.tau * signs(scores, targets) * only(scores)) / self.tau

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is the chance given to the other class."""
        return 1 / (1 + math.exp(-self.tau * infinite_unless_given(logit_bound)))

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}"


class KCosine(nn.Module):
    """Minus the cosine between scores and the class's own axis; scores shorter than k are not made longer.

    Args:
        k: the length from which on it is a cosine.

    >>> loss = KCosine(k=2.0)
    >>> loss(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([0, 0])), loss.lipschitz()
    (tensor([-0.6000, -0.5000]), 0.5)
    """

    def __init__(self, k: float) -> None:
        super().__init__()
        checks.positive(k=k)
        self.k = k

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        own, _ = own_and_others(scores, targets, None)
        return -own / torch.linalg.vector_norm(scores, dim=1).clamp(min=self.k)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """1/k, just where scores are of length k."""
        return 1 / self.k

    def extra_repr(self) -> str:
        return f"k={self.k:g}"
