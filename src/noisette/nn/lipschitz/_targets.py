"""Scores and targets as losses read them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks


def check_several(**arguments: int) -> None:
    """At least two classes, or an error names the argument."""
    checks.count(**arguments)
    for name, value in arguments.items():
        if value < 2:
            raise ValueError(f"expected {name} >= 2, got {name}={value}; two classes on one score are for TauBCE or KR")


def infinite_unless_given(logit_bound: float | None) -> float:
    """A bound on the norm of the scores; infinite where none is given."""
    if logit_bound is None:
        return math.inf
    if not logit_bound >= 0:
        raise ValueError(f"expected logit_bound >= 0, got logit_bound={logit_bound}")
    return logit_bound


def check_classes(scores: Tensor, targets: Tensor, outputs: int | None) -> None:
    """Scores (b, outputs) and as many targets, each the number of a class."""
    if scores.dim() != 2 or scores.shape[1] < 2 or outputs not in (None, scores.shape[1]):
        raise ValueError(f"expected scores of shape (b, {outputs or 'classes'}), got {tuple(scores.shape)}")
    _check_targets(scores, targets, scores.shape[1])


def _check_targets(scores: Tensor, targets: Tensor, classes: int) -> None:
    _check_one_for_each(scores, targets)
    if not ((targets >= 0) & (targets < classes) & (targets == targets.long())).all():
        raise ValueError(f"expected targets that are classes from 0 to {classes - 1}, got some that are not")


def _check_one_for_each(scores: Tensor, targets: Tensor) -> None:
    if targets.shape != scores.shape[:1]:
        raise ValueError(
            f"expected one target for each of {len(scores)} examples, got targets of shape {tuple(targets.shape)}"
        )


def own_and_others(scores: Tensor, targets: Tensor, outputs: int | None) -> tuple[Tensor, Tensor]:
    """The score of the true class, (b,), and those of all others, (b, outputs - 1)."""
    check_classes(scores, targets, outputs)
    column = targets.long().unsqueeze(1)
    others = torch.arange(scores.shape[1] - 1, device=scores.device)
    return scores.gather(1, column).squeeze(1), scores.gather(1, others + (others >= column))


def only(scores: Tensor) -> Tensor:
    """The one score of each example, (b,)."""
    if scores.dim() == 1:
        return scores
    if scores.dim() != 2 or scores.shape[1] != 1:
        raise ValueError(f"expected one score for each example, (b,) or (b, 1), got shape {tuple(scores.shape)}")
    return scores.squeeze(1)


def signs(scores: Tensor, targets: Tensor) -> Tensor:
    """-1 for class 0 and 1 for class 1, in the precision of the scores."""
    _check_targets(scores, targets, 2)
    return 2 * targets.to(scores.dtype) - 1


def distances(scores: Tensor, targets: Tensor, outputs: int) -> Tensor:
    """Scores less targets, (b, outputs)."""
    if outputs > 1:
        check_classes(scores, targets, outputs)
        return scores - nn.functional.one_hot(targets.long(), outputs)
    _check_one_for_each(scores, targets)
    return (only(scores) - targets.to(scores.dtype)).unsqueeze(1)
