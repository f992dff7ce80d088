"""The scores of a model on its test examples, and figures from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from noisette.data.target import Target
from noisette.nn.evaluation import in_evaluation
from noisette.training.predictions import ClassFigures, NumberFigures


@torch.no_grad()
def outputs(model: nn.Module, inputs: Tensor, *, at_once: int) -> np.ndarray:
    """The scores of a model in evaluation, (n, classes); ``at_once`` examples are in memory at once."""
    with in_evaluation(model):
        return torch.cat([model(part).float().cpu() for part in inputs.split(at_once)]).numpy()


def class_figures(scores: np.ndarray, targets: np.ndarray) -> ClassFigures:
    """The figures for scores (n, classes) and classes (n,).

    >>> figures = class_figures(np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), np.array([0, 1, 1]))
    >>> figures.confusion, round(figures.accuracy, 3), figures.macro_accuracy, figures.auc
    (((1, 0), (1, 1)), 0.667, 0.75, 0.5)
    """
    from sklearn.metrics import confusion_matrix, roc_auc_score

    classes = scores.shape[1]
    table = confusion_matrix(targets, scores.argmax(1), labels=range(classes))
    sizes, right = table.sum(1), table.diagonal()
    present = np.flatnonzero(sizes)
    auc = None
    if len(present) > 1 and np.isfinite(scores).all():
        chosen = present if classes > 2 else [1]
        shares = _softmax(scores)
        auc = float(np.mean([roc_auc_score(targets == k, shares[:, k]) for k in chosen]))
    return ClassFigures(
        accuracy=float(right.sum() / sizes.sum()),
        base_rate=float(sizes.max() / sizes.sum()),
        macro_accuracy=float(np.mean(right[present] / sizes[present])),
        auc=auc,
        confusion=tuple(tuple(row) for row in table.tolist()),
    )


def number_figures(predictions: np.ndarray, targets: np.ndarray, target: Target) -> NumberFigures:
    """The figures for predictions (n, 1) and targets (n,), both on the scale of the model from -1 to 1.

    >>> figures = number_figures(np.array([[0.0], [0.5]]), np.array([0.0, 1.0]), Target(0, 100, "EUR"))
    >>> figures.mae, figures.base_mae, figures.unit
    (12.5, 25.0, 'EUR')
    """
    right = target.unscaled(targets)
    errors = target.unscaled(predictions[:, 0]) - right
    return NumberFigures(
        rmse=_root_mean_square(errors),
        mae=float(np.abs(errors).mean()),
        base_rmse=_root_mean_square(right - right.mean()),
        base_mae=float(np.abs(right - np.median(right)).mean()),
        unit=target.unit,
    )


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True), dtype=np.float64)
    return powers / powers.sum(1, keepdims=True)
