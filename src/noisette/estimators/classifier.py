"""A private classifier for tables of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.accounting import Ledger
from noisette.data.columns import Columns
from noisette.errors import plain
from noisette.estimators.base import PrivateEstimator
from noisette.estimators.declared import Declarations, Pair


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Classifier with differential privacy: logistic regression on fixed piecewise linear features, or a small network.

    Each number gets ``n_knots`` fixed triangles within its declared bounds as further inputs, each row is scaled to
    norm one, and the weights are trained by DP-SGD with settings that need no search (``training.defaults``).

    Args:
        epsilon: the privacy budget of a fit together with everything in ``ledger``.
        delta: the probability with which the bound on epsilon may fail; 1e-5 unless given, or a tenth of one over
            ``size`` where that is smaller.
        size: the public number of rows; it need not be exact.
        bounds: (low, high), each a number or one number for each feature, or a mapping from the names of a frame's
            columns to (low, high). Values outside count as the nearer bound.
        columns: instead of ``bounds``, for a frame: the kind, bounds, categories and rule for missing values of each
            column, as :class:`noisette.data.columns.Columns` or the path of its TOML file. Other columns are not read.
        classes: all labels that are possible, or their number for labels from 0 on.
        hidden_layer_sizes: units of hidden tanh layers; with none the model is linear in the features.
        n_knots: triangles for each number, with 0 the model is linear in the numbers; 8 unless given, or fewer where
            ``size`` is small for the number of features.
        epochs: passes over the declared size; by rule unless given, as the next two.
        batch_size: expected number of rows in a batch.
        learning_rate: of SGD with momentum 0.9.
        ledger: a :class:`Ledger`, or the path of its file, that records the releases; in memory unless given. A clone
            writes to the same ledger.
        random_state: determines the first weights of hidden layers. Noise and batches never depend on it.
        undeclared_from_rows: read what is not declared (size, bounds, classes) from the rows, as scikit-learn does;
            epsilon does not cover that, and ``privacy_`` says so. For trials on public data.

    Attributes:
        classes_: the labels, sorted, shape (classes,).
        epsilon_, delta_: what the fit cost together with its ledger.
        privacy_: the guarantee in words, and what it does not cover.
        read_from_rows_: names of what was read from the rows and is not covered.
        bounds_: shape (2, features). n_features_in_, feature_names_in_: the shape of a row, which is public.
        noise_multiplier_, n_iter_, batch_size_, learning_rate_: of the fit. model_: the ``torch.nn.Module``.

    Guarantee: a fit is (epsilon, delta)-differentially private for adding or removing one row, provided that what is
    declared, and everything else given to it but ``X`` and ``y``, is public. An error that a value causes (a NaN, a
    label that is not declared) may disclose it.
    Source: Abadi et al. 2016, algorithm 1.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(2000, 2))
    >>> y = np.where(np.abs(X[:, 0]) > 0.5, "outside", "inside")
    >>> model = PrivateClassifier(epsilon=3, size=2000, bounds=(-1, 1), classes=["inside", "outside"]).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> 2.9 < model.epsilon_ <= 3, model.read_from_rows_
    (True, ())
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        size: int | None = None,
        bounds: Pair | Mapping[str, Pair] | None = None,
        columns: Columns | Path | str | None = None,
        classes: Sequence[Any] | int | None = None,
        hidden_layer_sizes: Sequence[int] | int = (),
        n_knots: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        ledger: Ledger | Path | str | None = None,
        random_state: Any = None,
        undeclared_from_rows: bool = False,
    ) -> None:
        super().__init__(
            epsilon,
            delta=delta,
            size=size,
            bounds=bounds,
            columns=columns,
            hidden_layer_sizes=hidden_layer_sizes,
            n_knots=n_knots,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            ledger=ledger,
            random_state=random_state,
            undeclared_from_rows=undeclared_from_rows,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on these rows; each call has a privacy cost of its own, which the ledger adds up.

        Args:
            X: rows of finite numbers, shape (n, features): an array or a frame.
            y: the label of each row, shape (n,).

        Raises:
            ValueError: something is not declared; all of it is listed, with the ways out. A label is not among the
                declared classes, a number is outside its domain, or the budget does not allow the steps.
            PrivacyError: the ledger is in use, or has no budget left.
        """
        with self._unchanged_if_it_fails():
            return self._fit_classes(*self._validated(X, y))

    def _fit_classes(self, X: Any, y: np.ndarray) -> Self:  # noqa: N803
        check_classification_targets(y)
        declared = Declarations(self.undeclared_from_rows)
        labels = declared.given("classes", self.classes, lambda: unique_labels(y))
        codes = torch.zeros(len(y), dtype=torch.int64)
        if labels is not None:
            self.classes_ = _declared_labels(labels)
            codes = _codes(self.classes_, y)
        return self._fit(
            X, codes, 1 if labels is None else len(self.classes_), _cross_entropy, declared, curvature=None
        )

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability of each class in the order of ``classes_``, shape (n, classes)."""
        return torch.softmax(self._outputs(X), dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The logarithms of :meth:`predict_proba`, shape (n, classes)."""
        return torch.log_softmax(self._outputs(X), dim=1).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class of each row, shape (n,)."""
        highest = self._outputs(X).argmax(dim=1).numpy()
        return self.classes_[highest]


def _cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _declared_labels(labels: Sequence[Any] | int) -> np.ndarray:
    """The labels, sorted.

    Raises:
        ValueError: one stands there twice, there are fewer than two, or this is no sequence of labels.
    """
    number = plain(labels)
    if not isinstance(number, int | Iterable):
        raise ValueError(f"expected classes as all labels, or as their whole number, got classes={number!r}")
    labels = list(range(number) if isinstance(number, int) else number)
    sorted_ = np.unique(np.asarray(labels))
    if len(sorted_) < len(labels):
        raise ValueError(f"expected different classes, got {list(labels)}")
    if len(sorted_) < 2:
        raise ValueError(f"a classifier needs two classes or more, got {len(sorted_)} class")
    return sorted_


def _codes(labels: np.ndarray, y: np.ndarray) -> Tensor:
    """The place of each label of ``y`` among the classes, int64, shape (n,).

    Raises:
        ValueError: a label is not among them; it is not named.
    """
    known = np.isin(y, labels)
    if not known.all():
        raise ValueError(
            f"y holds labels that are not among the {len(labels)} declared classes, such as that of row "
            f"{int(np.flatnonzero(~known)[0])}; declare every label that is possible"
        )
    return torch.as_tensor(np.searchsorted(labels, y), dtype=torch.int64)
