"""What the losses share: their base class, and the checks and shapes of scores and targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks


class Loss(nn.Module):
    """A module that shows its numeric settings."""

    def extra_repr(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


def check_at_least_two(**arguments: int) -> None:
    """Each argument is a whole number of at least two, or an error names it."""
    checks.count(**arguments)
    for name, value in arguments.items():
        if value < 2:
            raise ValueError(f"expected {name} >= 2, got {name}={value}; use TauBCE or KR for two classes on one score")


def score_norm_bound(logit_bound: float | None) -> float:
    """The bound on the norm of the scores; infinite if ``None``."""
    if logit_bound is None:
        return math.inf
    if not logit_bound >= 0:
        raise ValueError(f"expected logit_bound >= 0, got logit_bound={logit_bound}")
    return logit_bound


def check_classes(scores: Tensor, targets: Tensor, outputs: int | None) -> None:
    """Scores have shape (b, outputs) and targets are b class indices, or a ``ValueError`` says what differs."""
    if scores.dim() != 2 or scores.shape[1] < 2 or outputs not in (None, scores.shape[1]):
        raise ValueError(f"expected scores of shape (b, {outputs or 'classes'}), got {tuple(scores.shape)}")
    _check_targets(scores, targets, scores.shape[1])


def _check_targets(scores: Tensor, targets: Tensor, classes: int) -> None:
    _check_one_per_example(scores, targets)
    if not ((targets >= 0) & (targets < classes) & (targets == targets.long())).all():
        raise ValueError(f"expected targets that are classes from 0 to {classes - 1}, got other values")


def _check_one_per_example(scores: Tensor, targets: Tensor) -> None:
    if targets.shape != scores.shape[:1]:
        raise ValueError(
            f"expected one target for each of {len(scores)} examples, got targets of shape {tuple(targets.shape)}"
        )


def true_and_other_scores(scores: Tensor, targets: Tensor, outputs: int | None) -> tuple[Tensor, Tensor]:
    """The score of the true class, shape (b,), and those of all others, shape (b, outputs - 1)."""
    check_classes(scores, targets, outputs)
    column = targets.long().unsqueeze(1)
    others = torch.arange(scores.shape[1] - 1, device=scores.device)
    return scores.gather(1, column).squeeze(1), scores.gather(1, others + (others >= column))


def single_score(scores: Tensor) -> Tensor:
    """The one score of each example, shape (b,)."""
    if scores.dim() == 1:
        return scores
    if scores.dim() != 2 or scores.shape[1] != 1:
        raise ValueError(f"expected one score for each example, (b,) or (b, 1), got shape {tuple(scores.shape)}")
    return scores.squeeze(1)


def class_signs(scores: Tensor, targets: Tensor) -> Tensor:
    """-1 for class 0 and 1 for class 1, in the precision of the scores."""
    _check_targets(scores, targets, 2)
    return 2 * targets.to(scores.dtype) - 1


def residuals(scores: Tensor, targets: Tensor, outputs: int) -> Tensor:
    """Scores minus targets, shape (b, outputs)."""
    if outputs > 1:
        check_classes(scores, targets, outputs)
        return scores - nn.functional.one_hot(targets.long(), outputs)
    _check_one_per_example(scores, targets)
    return (single_score(scores) - targets.to(scores.dtype)).unsqueeze(1)
