"""What the losses share: their base class, and the checks and shapes of scores and targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks


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


def class_targets(scores: Tensor, targets: Tensor, outputs: int | None) -> tuple[Tensor, Tensor]:
    """The classes of examples with scores (b, outputs), and 1 for each, or NaN where the target is not a class.

    A loss that is multiplied by it, and its gradient, become NaN: such an example contributes nothing to a bounded
    sum. An error would show that the record is there.

    Raises:
        ValueError: scores or targets have another shape.
    """
    if scores.dim() != 2 or scores.shape[1] < 2 or outputs not in (None, scores.shape[1]):
        raise ValueError(f"expected scores of shape (b, {outputs or 'classes'}), got {tuple(scores.shape)}")
    return _whole_below(scores.shape[1], scores, targets)


def _whole_below(classes: int, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
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


def true_and_other_scores(scores: Tensor, targets: Tensor, outputs: int | None) -> tuple[Tensor, Tensor]:
    """The score of the true class, shape (b,), and those of all others, shape (b, outputs - 1).

    They are NaN where the target is not a class.
    """
    classes, known = class_targets(scores, targets, outputs)
    column, scores = classes.unsqueeze(1), scores * known.unsqueeze(1)
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
    """-1 for class 0 and 1 for class 1, in the precision of the scores; NaN for any other target."""
    classes, known = _whole_below(2, scores, targets)
    return (2 * classes - 1) * known


def residuals(scores: Tensor, targets: Tensor, outputs: int) -> Tensor:
    """Scores minus targets, shape (b, outputs); NaN where a target is not finite, or not a class."""
    if outputs > 1:
        classes, known = class_targets(scores, targets, outputs)
        one_hot = classes.unsqueeze(1) == torch.arange(outputs, device=scores.device)
        return (scores - one_hot.to(scores.dtype)) * known.unsqueeze(1)
    _check_one_per_example(scores, targets)
    finite = one_or_nan(targets.isfinite(), scores)
    return ((single_score(scores) - targets.to(scores.dtype)) * finite).unsqueeze(1)
