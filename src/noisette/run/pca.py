"""Private principal components: one noised sum over the records, and eigenvectors computed from it."""

from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import torch
from scipy import linalg, sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from noisette.accounting import Gaussian, GdpAccountant, Ledger, noise_multiplier_for
from noisette.accounting.calibrate import check_ranges
from noisette.core.release import noised
from noisette.errors import PrivacyError, all_of, count, exactly_one
from noisette.ranks import AnyRanks, ranks_of

PART = "principal components"  # the name of the release in the ledger

# The sum of outer products is computed exactly, in integers: in floating point, rounding would depend on all records. A
# row of norm one is rounded towards zero to multiples of this unit, so a product of two entries is at most 2^32 units
# squared. Double precision adds up 1024 of these without rounding, 64-bit integers 2^31.
_UNIT = 2.0**-16
_ROWS_AT_ONCE = 1024
_MAX_ROWS = 2**31
# Rows are scaled to a norm below one by this much, which is more than rounding errors of the norm can add.
_SLACK = 2.0**-20

# Floating-point warnings would disclose something about a record, also as errors if the user turned them into those.
_quiet = np.errstate(all="ignore")


class PrivatePCA(TransformerMixin, BaseEstimator):
    """Uncentred principal component analysis with differential privacy, as a scikit-learn estimator.

    Rows are scaled to norm one, M is the sum of their outer products, and a fit releases M with Gaussian noise on every
    entry. Components and eigenvalues are those of the symmetric part of the noised M. A row of zeros, or with a value
    that is not finite, contributes nothing.

    Args:
        n_components: number of components to keep, at most the number of features.
        noise_multiplier: standard deviation of the noise on each entry of M.
        epsilon: alternatively, with ``delta``, the privacy budget of one fit, from which the noise is computed.
        delta: the probability with which the bound on epsilon may fail.
        ledger: the ledger of the data set, which records each fit before its noise is drawn; by default one in memory.
            Clones write to the same ledger.
        ranks, declaration: as for :func:`noisette.privatize`. Each rank gives all rows.

    Attributes:
        components_: the leading eigenvectors, shape (n_components, features), signed so that the entry of largest
            magnitude is positive.
        eigenvalues_: their noised eigenvalues, shape (n_components,), largest first.
        noise_multiplier_: the noise multiplier of the last fit.
        n_features_in_: number of features.

    Guarantee: a fit is one Gaussian mechanism of this noise multiplier for adding or removing one record, also in
    floating-point arithmetic. What :meth:`transform` returns is as private as the rows that it gets.
    Source: Dwork et al. 2014, "Analyze Gauss"; Abadi et al. 2016, section 4.

    >>> rows = np.random.default_rng(0).normal(size=(5000, 6)) * [9, 5, 1, 1, 1, 1]
    >>> pca = PrivatePCA(n_components=2, noise_multiplier=16.0).fit(rows)
    >>> pca.transform(rows).shape
    (5000, 2)
    >>> pca.ledger.events
    {Gaussian(noise_multiplier=16.0, parts=(('principal components', 1.0),)): 1}
    """

    def __init__(
        self,
        n_components: int,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: Ledger | None = None,
        ranks: AnyRanks | None = None,
        declaration: str = "",
    ) -> None:
        self.n_components, self.ranks, self.declaration = n_components, ranks, declaration
        self.noise_multiplier, self.epsilon, self.delta = noise_multiplier, epsilon, delta
        self.ledger = ledger if ledger is not None else Ledger()

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803
        """Release the noised sum of these rows and keep its leading eigenvectors. Each call has a privacy cost.

        Args:
            X: rows of numbers, shape (n, features): an array, a tensor, a scipy sparse matrix or a data frame.
            y: ignored.

        Raises:
            ValueError: an argument is outside its domain, missing or in conflict, or X is no table of numbers.
            PrivacyError: there are 2^31 rows or more.
        """
        with ExitStack() as owned:
            moment = self._released(X, ranks_of(self.ranks, owned))
        self.eigenvalues_, self.components_ = _leading((moment + moment.T) / 2, self.n_components)
        return self

    def _released(self, X: Any, ranks: AnyRanks) -> np.ndarray:  # noqa: N803
        with ranks.unanimous("the principal components"):
            rows = _table(X)
            features = rows.shape[1]
            noise_multiplier = self._checked_noise(features)
            total = _second_moment(rows, ranks)
        declared = {"features": features, "noise of the components": noise_multiplier}
        ranks.check_equal("the principal components", lambda: declared)
        ranks.add_up([torch.from_numpy(total)])  # of integers, so it is that of a single process
        with ranks.unanimous("the price of the principal components"):
            self.ledger.charge(Gaussian(noise_multiplier, parts=((PART, 1.0),)), declaration=self.declaration)
        self.noise_multiplier_, self.n_features_in_ = noise_multiplier, features
        # Its sensitivity is one, the largest Frobenius norm of the outer product of a row.
        return noised(torch.from_numpy(total * _UNIT**2), noise_multiplier, ranks.key(), PART).numpy()

    @_quiet
    def transform(self, X: Any) -> Any:  # noqa: N803
        """Project rows of numbers onto the components, (n, n_components); the rows are neither scaled nor centred.

        A tensor gives a tensor, anything else an array; single precision stays, other rows are projected in double
        precision.

        Raises:
            sklearn.exceptions.NotFittedError: there was no fit before.
            ValueError: X is no table of numbers, or has another number of features than in the fit.
        """
        check_is_fitted(self)
        rows = _table(X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(f"expected {self.n_features_in_} features, as in the fit, got {rows.shape[1]}")
        if isinstance(rows, Tensor):
            kind = rows.dtype if rows.dtype == torch.float32 else torch.float64
            return rows.to(kind) @ torch.tensor(self.components_.T, dtype=kind, device=rows.device)
        kind = rows.dtype if rows.dtype == np.float32 else np.float64
        return rows.astype(kind) @ self.components_.T.astype(kind)

    def __sklearn_clone__(self) -> Self:
        """An estimator with the same ledger, because a copied ledger would miss the cost of the other's fits."""
        return type(self)(**self.get_params(deep=False))

    def _checked_noise(self, features: int) -> float:
        """The noise multiplier that was given, or that of the budget; a ValueError lists all problems."""
        noise_multiplier, epsilon, delta = self.noise_multiplier, self.epsilon, self.delta

        def check_fits() -> None:
            count(n_components=self.n_components)
            if self.n_components > features:
                raise ValueError(f"expected n_components <= {features} features, got n_components={self.n_components}")

        def check_pair() -> None:
            if (epsilon is None) != (delta is None):
                raise ValueError("give epsilon and delta together: the probability with which epsilon may fail")

        all_of(
            check_fits,
            lambda: exactly_one(noise_multiplier=noise_multiplier, epsilon=epsilon),
            check_pair,
            lambda: check_ranges(noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta),
        )
        if epsilon is None or delta is None:
            assert noise_multiplier is not None, "checked above"
            return float(noise_multiplier)
        by = GdpAccountant()
        return noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=1, accountant=by)


def _table(data: Any) -> Any:
    """The rows as a dense tensor, array or scipy sparse matrix; no error tells their number, which is private."""
    if not isinstance(data, Tensor) and not sparse.issparse(data):
        try:
            data = np.asarray(data)
        except ValueError:
            raise ValueError("expected rows of equal length, shape (n, features)") from None
    if data.ndim != 2:
        raise ValueError(
            f"expected rows of numbers, shape (n, features), got {data.ndim} axes; flatten each record, as in "
            "images.reshape(len(images), -1)"
        )
    if data.is_complex() if isinstance(data, Tensor) else data.dtype.kind not in "biuf":
        # The dtype itself contains the length of the longest entry of texts.
        kinds = {"U": "text", "S": "text", "O": "objects", "c": "complex numbers"}
        kind = str(data.dtype) if isinstance(data, Tensor) else kinds.get(data.dtype.kind, "another kind")
        raise ValueError(f"expected rows of real numbers, got {kind}; encode other columns as numbers first")
    if isinstance(data, Tensor):
        if data.layout != torch.strided:
            raise ValueError(f"expected a dense tensor, got {data.layout}; give sparse rows as a scipy sparse matrix")
        return data.detach()
    return data.tocsr() if sparse.issparse(data) else data


@_quiet
def _second_moment(rows: Any, ranks: AnyRanks) -> np.ndarray:
    """The exact sum of the outer products of this rank's rows at norm one, in integer multiples of the unit squared."""
    if rows.shape[0] >= _MAX_ROWS:
        raise PrivacyError(f"a sum over {_MAX_ROWS} records or more is not exact; fit a public part of the table")
    total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for start in range(ranks.rank * _ROWS_AT_ONCE, rows.shape[0], ranks.size * _ROWS_AT_ONCE):
        block: Any = rows[start : start + _ROWS_AT_ONCE]
        block = block.cpu().double().numpy() if isinstance(block, Tensor) else block
        unit = _unit_rows((block.toarray() if sparse.issparse(block) else block).astype(np.float64))
        total += (unit.T @ unit).astype(np.int64)  # exact in double precision: see _UNIT
    return total


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    """Each row scaled to norm one or just below, in integer multiples of the unit; zeros where one is not finite."""
    rows = np.where(np.isfinite(rows).all(1, keepdims=True), rows, 0.0)
    largest = np.abs(rows).max(1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)  # so that no square overflows or underflows
    norms = np.sqrt(np.square(rows).sum(1, keepdims=True))  # at least one, except for rows of zeros
    return np.trunc(rows * ((1 - _SLACK) / _UNIT / np.maximum(norms, 1.0)))


def _leading(matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest eigenvalues, and their eigenvectors as rows with signs that do not depend on the solver."""
    d = len(matrix)
    # By value, not by magnitude, because noise alone causes eigenvalues far below zero.
    values, vectors = linalg.eigh(matrix, subset_by_index=(d - k, d - 1))
    vectors = vectors.T[::-1]
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(1, keepdims=True), axis=1)
    return values[::-1].copy(), vectors * np.sign(largest)
