"""How well a model predicts its test examples: classes or a number, each beside what needs no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClassFigures:
    """Predicted classes of the test examples.

    accuracy: the share that is right.
    base_rate: the share of the most frequent class, which is the accuracy of always predicting it.
    macro_accuracy: the mean over the classes of the share that is right in each.
    auc: the area under the curve of true against false positive rates; of more than two classes the mean over each
        against the others. ``None`` if the test examples are all of one class.
    confusion: for each class, how many of its examples were predicted as each class.
    """

    accuracy: float
    base_rate: float
    macro_accuracy: float
    auc: float | None
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class NumberFigures:
    """Predicted numbers of the test examples, in the unit of the target.

    rmse, mae: the root of the mean squared error, and the mean absolute error.
    base_rmse, base_mae: those of the best constant, which are the mean and the median of the test examples.
    """

    rmse: float
    mae: float
    base_rmse: float
    base_mae: float
    unit: str
