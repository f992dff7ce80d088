"""A private regressor for tables of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from noisette.accounting import Ledger
from noisette.data.columns import Columns
from noisette.estimators.base import PrivateEstimator
from noisette.estimators.declared import Declarations, Pair, bounds_of_rows, check_ascending


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """Regression with differential privacy: least squares on fixed piecewise linear features, or a small network.

    Args:
        target_bounds: (low, high): targets outside count as the nearer bound, and predictions lie within.

    The other arguments, attributes and errors, and the guarantee, are those of :class:`PrivateClassifier`.

    Attributes:
        target_bounds_: shape (2,).

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(5000, 2))
    >>> y = np.abs(X[:, 0]) + X[:, 1]
    >>> model = PrivateRegressor(epsilon=3, size=5000, bounds=(-1, 1), target_bounds=(-1, 2)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        size: int | None = None,
        bounds: Pair | Mapping[str, Pair] | None = None,
        columns: Columns | Path | str | None = None,
        target_bounds: Pair | None = None,
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
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on these rows; each call has a privacy cost of its own, which the ledger adds up.

        Args:
            X: rows of finite numbers, shape (n, features): an array or a frame.
            y: the number to predict for each row, shape (n,).

        Raises:
            ValueError, PrivacyError: as for :meth:`PrivateClassifier.fit`.
        """
        with self._unchanged_if_it_fails():
            return self._fit_numbers(*self._validated(X, y))

    def _fit_numbers(self, X: Any, y: np.ndarray) -> Self:  # noqa: N803
        declared = Declarations(self.undeclared_from_rows)
        pair = declared.given("target_bounds", self.target_bounds, lambda: bounds_of_rows(y))
        scaled = np.zeros(len(y))
        if pair is not None:
            self.target_bounds_ = np.asarray(pair, dtype=np.float64)
            if self.target_bounds_.shape != (2,):
                raise ValueError(f"expected target_bounds as (low, high), got {pair!r}")
            check_ascending("target_bounds", self.target_bounds_)
            low, high = self.target_bounds_
            scaled = 2 * (np.clip(y, low, high) - low) / (high - low) - 1
        return self._fit(
            X, torch.as_tensor(scaled, dtype=torch.float32), 1, _squared_error, declared, curvature=_CURVATURE
        )

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The prediction for each row, within ``target_bounds``, shape (n,)."""
        scores = self._outputs(X)[:, 0].clamp(-1, 1).numpy()
        low, high = self.target_bounds_
        return low + (scores + 1) * (high - low) / 2


# Of the squared error of a linear model whose inputs are a row of norm one and a one for the bias.
_CURVATURE = 2.0


def _squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0] - y).square() / 2
