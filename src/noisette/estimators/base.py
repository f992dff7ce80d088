"""What the private classifier and regressor have in common: declarations, one fit, and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from noisette._internal import checks
from noisette.accounting import Ledger
from noisette.estimators.declared import Declarations, Pair, bounds_of_rows, feature_bounds
from noisette.estimators.features import fixed_part, trained_part
from noisette.estimators.fitting import Loss, Settings, fit
from noisette.estimators.statement import statement
from noisette.training.defaults import knots_for


class PrivateEstimator(BaseEstimator):
    """Trains a small model on rows of bounded numbers; the subclasses know the targets."""

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        size: int | None = None,
        bounds: Pair | Mapping[str, Pair] | None = None,
        hidden_layer_sizes: Sequence[int] = (),
        n_knots: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        ledger: Ledger | Path | str | None = None,
        random_state: Any = None,
        undeclared_from_rows: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.size = size
        self.bounds = bounds
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_knots = n_knots
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.ledger = ledger
        self.random_state = random_state
        self.undeclared_from_rows = undeclared_from_rows

    def _fit(
        self,
        X: np.ndarray,  # noqa: N803
        targets: Tensor,
        outputs: int,
        loss: Loss,
        declared: Declarations,
        *,
        curvature: float | None,
    ) -> Self:
        """Fit a model with so many outputs to checked rows; everything but bounds and size was declared before."""
        names = getattr(self, "feature_names_in_", None)
        features = X.shape[1]
        size = declared.given("size", self.size, lambda: len(X))
        bounds = declared.given("bounds", self.bounds, lambda: bounds_of_rows(X))
        declared.refuse_missing()
        assert size is not None
        assert bounds is not None
        found: list[np.ndarray] = []
        checks.all_of(
            *self._checks(size),
            lambda: found.append(feature_bounds(bounds, None if names is None else list(names), features)),
        )
        [self.bounds_] = found
        knots = knots_for(features, size) if self.n_knots is None else self.n_knots
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_random_state(self.random_state).randint(2**31 - 1))
            model = trained_part(features, outputs, knots=knots, hidden_layer_sizes=tuple(self.hidden_layer_sizes))
        fixed = fixed_part(knots)
        settings = Settings(
            epsilon=float(self.epsilon),
            delta=self.delta,
            size=size,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            ledger=self.ledger,
            curvature=curvature,
        )
        fitted = fit(model, fixed, loss, (self._inputs(X), targets), settings)
        self.model_ = nn.Sequential(fixed, fitted.model)
        self.epsilon_, self.delta_ = fitted.epsilon, fitted.delta
        self.noise_multiplier_, self.n_iter_ = fitted.noise_multiplier, fitted.steps
        self.batch_size_, self.learning_rate_ = fitted.expected_batch_size, fitted.learning_rate
        self.read_from_rows_ = tuple(declared.read)
        self.privacy_ = statement(fitted, size, declared.read)
        return self

    def _checks(self, size: int) -> Sequence[Any]:
        """The checks of the parameters, to be run together."""
        sizes = tuple(self.hidden_layer_sizes)
        return (
            lambda: checks.count(size=size),
            lambda: checks.positive(epsilon=self.epsilon),
            lambda: self.delta is None or checks.open_fraction(delta=self.delta),
            lambda: self.n_knots is None or checks.whole(n_knots=self.n_knots),
            lambda: checks.count(**{f"hidden_layer_sizes[{k}]": units for k, units in enumerate(sizes)}),
            lambda: self.epochs is None or checks.positive(epochs=self.epochs),
            lambda: self.batch_size is None or checks.count(batch_size=self.batch_size),
            lambda: self.learning_rate is None or checks.positive(learning_rate=self.learning_rate),
        )

    def _inputs(self, X: np.ndarray) -> Tensor:  # noqa: N803
        """Rows with each number clipped to its declared bounds and mapped to [0, 1], float32."""
        low, high = self.bounds_
        return torch.as_tensor(((np.clip(X, low, high) - low) / (high - low)).astype(np.float32))

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:  # noqa: N803
        """The outputs of the fitted model, float64, shape (n, outputs)."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        inputs = self._inputs(np.asarray(rows))
        return torch.cat([self.model_(part).double() for part in inputs.split(_PREDICTED_AT_ONCE)])

    def __sklearn_clone__(self) -> Self:
        """An estimator with the same ledger, because a copied ledger would miss the cost of the other's fits."""
        from sklearn.base import clone

        parameters = self.get_params(deep=False)
        ledger = parameters.pop("ledger")
        copied: dict[str, Any] = {name: clone(value, safe=False) for name, value in parameters.items()}
        return type(self)(**copied, ledger=ledger)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise and batches are drawn by a secret key, which no seed reaches
        return tags


_PREDICTED_AT_ONCE = 10_000
