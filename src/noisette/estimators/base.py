"""What the private classifier and regressor have in common: declarations, one fit, and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from noisette import errors as checks
from noisette.accounting import Ledger
from noisette.data.columns import Columns
from noisette.errors import plain
from noisette.estimators.declared import (
    Declarations,
    Pair,
    bounds_of_columns,
    bounds_of_rows,
    columns_of,
    feature_bounds,
)
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
        columns: Columns | Path | str | None = None,
        hidden_layer_sizes: Sequence[int] | int = (),
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
        self.columns = columns
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_knots = n_knots
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.ledger = ledger
        self.random_state = random_state
        self.undeclared_from_rows = undeclared_from_rows

    @contextmanager
    def _unchanged_if_it_fails(self) -> Iterator[None]:
        """Where a fit fails, the estimator stays what the last one made of it."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _validated(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:  # noqa: N803
        """Rows of numbers, or a frame whose columns are declared, and targets; the shape of a row is noted.

        Raises:
            ValueError: the rows are no table, or differ in number from the targets. The message contains no value.
        """
        if is_regressor(self):
            check_numeric_targets(y)
        if self.columns is None:
            with values_kept_out():
                rows, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=is_regressor(self))
            return rows, np.asarray(targets)
        if isinstance(X, Mapping):
            self.n_features_in_ = len(X)
        else:
            validate_data(self, X, skip_check_array=True)
        targets = column_or_1d(y, dtype=np.float64 if is_regressor(self) else None, warn=True)
        assert_all_finite(targets, input_name="y")
        check_consistent_length(*(X.values() if isinstance(X, Mapping) else [X]), targets)
        return X, targets

    def _fit(
        self,
        X: Any,  # noqa: N803
        targets: Tensor,
        outputs: int,
        loss: Loss,
        declared: Declarations,
        *,
        curvature: float | None,
    ) -> Self:
        """Fit a model with so many outputs to checked rows; everything but bounds and size was declared before."""
        size = declared.given("size", self.size, lambda: len(targets))
        bounds = None
        if self.columns is None:
            bounds = declared.given("bounds", self.bounds, lambda: bounds_of_rows(X))
        declared.refuse_missing()
        assert size is not None
        size = plain(size)
        checks.all_of(*self._checks(size), lambda: self._note_bounds(bounds, X))
        features = self.bounds_.shape[1]
        knots = knots_for(features, size) if self.n_knots is None else plain(self.n_knots)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_random_state(self.random_state).randint(2**31 - 1))
            model = trained_part(features, outputs, knots=knots, hidden_layer_sizes=self._hidden())
        fixed = fixed_part(knots)
        settings = Settings(
            epsilon=float(self.epsilon),
            delta=plain(self.delta),
            size=size,
            epochs=plain(self.epochs),
            batch_size=plain(self.batch_size),
            learning_rate=plain(self.learning_rate),
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

    def _note_bounds(self, bounds: Pair | Mapping[str, Pair] | None, X: Any) -> None:  # noqa: N803
        """Keep the declared columns and the bounds of the inputs.

        Raises:
            ValueError: they contradict themselves, or both were declared.
        """
        if self.columns is None:
            assert bounds is not None
            names = getattr(self, "feature_names_in_", None)
            self.columns_ = None
            self.bounds_ = feature_bounds(bounds, None if names is None else list(names), X.shape[1])
        elif self.bounds is not None:
            raise ValueError("declare bounds or columns, whose numbers have bounds of their own, not both")
        else:
            self.columns_ = columns_of(self.columns)
            self.bounds_ = bounds_of_columns(self.columns_)

    def _hidden(self) -> tuple[int, ...]:
        """The units of each hidden layer."""
        sizes = plain(self.hidden_layer_sizes)
        return (sizes,) if isinstance(sizes, int) else tuple(map(plain, sizes))

    def _checks(self, size: int) -> Sequence[Any]:
        """The checks of the parameters, to be run together."""
        batch_size, knots = plain(self.batch_size), plain(self.n_knots)
        return (
            lambda: checks.count(size=size),
            lambda: checks.positive(epsilon=self.epsilon),
            lambda: self.delta is None or checks.open_fraction(delta=self.delta),
            lambda: knots is None or checks.whole(n_knots=knots),
            lambda: checks.count(**{f"hidden_layer_sizes[{k}]": units for k, units in enumerate(self._hidden())}),
            lambda: self.epochs is None or checks.positive(epochs=self.epochs),
            lambda: batch_size is None or checks.count(batch_size=batch_size),
            lambda: _check_batch(batch_size, size),
            lambda: self.learning_rate is None or checks.positive(learning_rate=self.learning_rate),
        )

    def _inputs(self, X: Any) -> Tensor:  # noqa: N803
        """Rows with each number clipped to its declared bounds and mapped to [0, 1], float32."""
        if self.columns_ is not None:
            X = self.columns_.encode(X)  # noqa: N806
        low, high = self.bounds_
        return torch.as_tensor(((np.clip(X, low, high) - low) / (high - low)).astype(np.float32))

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:  # noqa: N803
        """The outputs of the fitted model, float64, shape (n, outputs)."""
        check_is_fitted(self)
        if self.columns_ is None:
            with values_kept_out():
                X = validate_data(self, X, reset=False, dtype=np.float64)  # noqa: N806
        inputs = self._inputs(X)
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


def _check_batch(batch_size: int | None, size: int) -> None:
    if batch_size is not None and isinstance(batch_size, int) and isinstance(size, int) and batch_size > size:
        raise ValueError(f"expected a batch_size of at most the declared size, {size}, got {batch_size}")


def check_numeric_targets(y: Any) -> None:
    """Check that targets are numbers.

    Raises:
        ValueError: they are texts or complex numbers. The message contains no value.
    """
    targets = np.asarray(y)
    texts = targets.dtype.kind in "UST" or (
        targets.dtype.kind == "O" and any(isinstance(value, str | bytes) for value in targets.ravel())
    )
    if texts:
        raise ValueError(
            "y holds texts, where numbers were expected: convert them, as by y.astype(float), or use PrivateClassifier"
        )
    if targets.dtype.kind == "c":
        raise ValueError("Complex data not supported: y holds complex numbers; fit their parts one by one")


@contextmanager
def values_kept_out() -> Iterator[None]:
    """Replace errors that contain values of the rows by ones without them."""
    try:
        yield
    except ValueError as error:
        said = str(error)
        if "could not convert string" in said:
            fact = (
                "X holds texts, where numbers were expected; declare columns= with their categories, or encode them "
                "with OneHotEncoder(categories=...)"
            )
        elif said.startswith("Complex data"):
            fact = "Complex data not supported: X holds complex numbers; give their parts as columns of their own"
        elif "array=" in said:
            fact = (
                f"{said.partition(':')[0]}. Reshape your data: X.reshape(-1, 1) if it has one feature, "
                "X.reshape(1, -1) if it is one row"
            )
        else:
            raise
        raise ValueError(fact) from None
