"""Principal components of private records: one noised sum, and what follows from it alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from scipy import linalg, sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from noisette._internal import checks
from noisette._internal.keystream import SecretKey
from noisette.accounting import TAIL_SHARE, Gaussian, GdpAccountant, Ledger, noise_multiplier_for, tail_delta
from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import BoundedSum
from noisette.mechanisms.gaussian import GaussianRelease

PART = "principal components"
"""What the release is called in the ledger."""

# A row of length one is written in whole numbers of this unit, cut towards zero. Products and sums of whole numbers are
# exact, so a record moves the sum by its own part and no more, whatever the others are and however they are added up.
_UNIT = 2.0**-16
# How much shorter than one a row is made: more than the rounding of its length and of a sum over most rows can undo.
_SLACK = 2.0**-20
_MOST_ROWS = 2**31
_ROWS_AT_ONCE = 1024
# The smallest delta that a release must be good for if none was named.
_LEAST_DELTA = 1e-10

# A warning, or an error where the user asked for one, would tell of a record.
_quiet = np.errstate(all="ignore")


class PrivatePCA(TransformerMixin, BaseEstimator):
    """Uncentred principal component analysis with differential privacy, as a scikit-learn estimator.

    Rows are scaled to length one, M is the sum of their outer products, and what is released is M with Gaussian noise
    on every entry. Components and eigenvalues are those of the symmetric part of the noised M. Nothing else is taken
    from the records: no mean, no variance, no count.

    A row of zeros, or with a value that is not finite, adds nothing. Any number of rows will do, none included.

    Args:
        n_components: how many components to keep, at most the length of a row.
        noise_multiplier: standard deviation of the noise on each entry of M.
        epsilon: instead, with ``delta``: the budget of one fit, from which the noise is calculated.
        delta: the probability with which the bound on epsilon may fail.
        ledger: where each fit is written before its noise is drawn; one in memory unless given. Give the ledger of the
            data set, so that its prices add up. Clones write to the same one.

    Attributes:
        components_: the leading eigenvectors, shape (n_components, features), signed so that the entry of largest
            magnitude is positive.
        eigenvalues_: their noised eigenvalues, shape (n_components,), largest first: about how much of the squared
            lengths of the scaled rows lies along each, and noise where that is little.
        noise_multiplier_: the noise of the last fit.
        n_features_in_: numbers in a row.

    Guarantee: a fit is one Gaussian mechanism of this noise multiplier for adding or removing one record, in floating
    point too. What :meth:`transform` returns is as private as the rows that it is given.
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
    ) -> None:
        self.n_components = n_components
        self.noise_multiplier = noise_multiplier
        self.epsilon = epsilon
        self.delta = delta
        self.ledger = ledger if ledger is not None else Ledger()

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803
        """Release the noised sum of these rows, and keep its leading eigenvectors. Each call is paid for.

        Args:
            X: rows of numbers, shape (n, features): an array, a tensor, a scipy sparse matrix or a data frame.
            y: ignored.

        Raises:
            ValueError: a number outside its domain, one too many or missing, or X is no table of numbers.
            PrivacyError: the noise is so small that the tail of its generator would show.
        """
        rows = _table(X)
        features = rows.shape[1]
        self._check(features)
        noise_multiplier = self._noise(features)
        total = _second_moment(rows)
        self.ledger.charge(Gaussian(noise_multiplier, parts=((PART, 1.0),)))
        noised = _noised(total, noise_multiplier)
        self.eigenvalues_, self.components_ = _leading((noised + noised.T) / 2, self.n_components)
        self.noise_multiplier_, self.n_features_in_ = noise_multiplier, features
        return self

    @_quiet
    def transform(self, X: Any) -> Any:  # noqa: N803
        """Rows projected on the components, as they are: neither scaled nor centred.

        Args:
            X: rows of numbers, shape (n, features).

        Returns:
            Shape (n, n_components): a tensor for a tensor, an array otherwise; in single precision where X is, else in
            double.

        Raises:
            sklearn.exceptions.NotFittedError: there was no fit before.
            ValueError: X is no table of numbers, or its rows have another length than those of the fit.
        """
        check_is_fitted(self)
        rows = _table(X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(f"expected {self.n_features_in_} numbers in a row, as in the fit, got {rows.shape[1]}")
        if isinstance(rows, Tensor):
            kind = rows.dtype if rows.dtype == torch.float32 else torch.float64
            return rows.to(kind) @ torch.tensor(self.components_.T, dtype=kind, device=rows.device)
        kind = rows.dtype if rows.dtype == np.float32 else np.float64
        return rows.astype(kind) @ self.components_.T.astype(kind)

    def __sklearn_clone__(self) -> Self:
        """An estimator with the same ledger: a copied one would not know what the others spend."""
        return type(self)(**self.get_params(deep=False))

    def _check(self, features: int) -> None:
        checks.all_of(
            lambda: checks.count(n_components=self.n_components),
            lambda: _check_fits(self.n_components, features),
            lambda: checks.exactly_one(noise_multiplier=self.noise_multiplier, epsilon=self.epsilon),
            lambda: _check_pair(self.epsilon, self.delta),
            lambda: self.noise_multiplier is None or checks.positive(noise_multiplier=self.noise_multiplier),
            lambda: self.epsilon is None or checks.positive(epsilon=self.epsilon),
            lambda: self.delta is None or checks.open_fraction(delta=self.delta),
        )

    def _noise(self, features: int) -> float:
        """The noise multiplier: as given, or calculated from the budget of one fit."""
        noise, delta = self.noise_multiplier, self.delta if self.delta is not None else _LEAST_DELTA
        if noise is None:
            assert self.epsilon is not None
            noise = noise_multiplier_for(
                epsilon=self.epsilon,
                delta=delta * (1 - TAIL_SHARE),
                sampling_rate=1.0,
                steps=1,
                accountant=GdpAccountant(),
            )
        tail = tail_delta(noise_multiplier=noise, sampling_rate=1.0, steps=1, dimensions=features**2)
        if tail > TAIL_SHARE * delta:
            raise PrivacyError(
                f"noise_multiplier={noise:.4g} is so small that the tail of the noise generator alone costs "
                f"delta={tail:.2g}, more than {TAIL_SHARE:.0%} of delta={delta:.2g}; ask for more noise"
            )
        return float(noise)


def private_pca(data: Any, components: int, noise_multiplier: float, *, ledger: Ledger | None = None) -> PrivatePCA:
    """Private principal components of these records, ready to ``transform``.

    Args:
        data: rows of numbers, shape (n, features): an array, a tensor, a scipy sparse matrix or a data frame.
        components: how many to keep, at most the length of a row.
        noise_multiplier: standard deviation of the noise on each entry of the sum of outer products.
        ledger: where the release is written before its noise is drawn; one in memory unless given.

    Guarantee: that of :class:`PrivatePCA`.

    Raises:
        ValueError: a number outside its domain, or the data is no table of numbers.
        PrivacyError: the noise is so small that the tail of its generator would show.

    >>> digits = torch.rand(100, 64)
    >>> private_pca(digits, components=8, noise_multiplier=4.0).components_.shape
    (8, 64)
    """
    return PrivatePCA(components, noise_multiplier=noise_multiplier, ledger=ledger).fit(data)


def _check_fits(n_components: int, features: int) -> None:
    if isinstance(n_components, int) and n_components > features:
        raise ValueError(f"expected n_components <= {features}, the numbers in a row, got n_components={n_components}")


def _check_pair(epsilon: float | None, delta: float | None) -> None:
    if (epsilon is None) != (delta is None):
        raise ValueError("epsilon and delta are given together: delta is the probability with which epsilon may fail")


def _table(data: Any) -> Any:
    """The rows as a dense tensor, an array or a sparse matrix of two axes. No message tells how many there are."""
    if not isinstance(data, Tensor) and not sparse.issparse(data):
        try:
            data = np.asarray(data)
        except ValueError:
            raise ValueError("expected rows of equally many numbers, shape (n, features)") from None
    if data.ndim != 2:
        raise ValueError(
            f"expected rows of numbers, shape (n, features), got {data.ndim} axes; flatten each record, as in "
            "images.reshape(len(images), -1)"
        )
    if data.is_complex() if isinstance(data, Tensor) else data.dtype.kind not in "biuf":
        raise ValueError(f"expected rows of real numbers, got {_kind(data)}; encode columns of another kind first")
    if isinstance(data, Tensor):
        if data.layout != torch.strided:
            raise ValueError(f"expected a dense tensor, got {data.layout}; give sparse rows as a scipy sparse matrix")
        return data.detach()
    return data.tocsr() if sparse.issparse(data) else data


def _kind(data: Any) -> str:
    """What a table holds instead of numbers. The dtype of text would tell how long the longest is."""
    if isinstance(data, Tensor):
        return str(data.dtype)
    return {"U": "text", "S": "text", "O": "objects", "c": "complex numbers"}.get(data.dtype.kind, "another kind")


@_quiet
def _second_moment(rows: Any) -> np.ndarray:
    """The sum of the outer products of all rows at unit length, exact, in whole numbers of the unit squared."""
    if rows.shape[0] >= _MOST_ROWS:
        raise PrivacyError(f"a sum over {_MOST_ROWS} records or more is not exact; fit a public part of the table")
    total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for part in _dense_parts(rows):
        unit = _unit_rows(part)
        total += (unit.T @ unit).astype(np.int64)
    return total


def _dense_parts(rows: Any) -> Iterator[np.ndarray]:
    """The rows in double precision, a few at a time."""
    for start in range(0, rows.shape[0], _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        if isinstance(part, Tensor):
            yield part.cpu().double().numpy()
        else:
            yield (part if isinstance(part, np.ndarray) else part.toarray()).astype(np.float64)


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    """Each row at length one or just below, in whole numbers of the unit; zeros where it has no direction.

    The largest magnitude is divided out first, so that no square overflows or vanishes.
    """
    rows = np.where(np.isfinite(rows).all(1, keepdims=True), rows, 0.0)
    largest = np.abs(rows).max(1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)
    lengths = np.sqrt(np.square(rows).sum(1, keepdims=True))  # one or more, but for zeros
    return np.trunc(rows * ((1 - _SLACK) / _UNIT / np.maximum(lengths, 1.0)))


def _noised(total: np.ndarray, noise_multiplier: float) -> np.ndarray:
    """The only value that leaves the records. Each row has length one at most, and so has its outer product."""
    grads = torch.from_numpy(total * _UNIT**2)
    noised = torch.empty_like(grads)
    release = GaussianRelease(SecretKey(), noise_multiplier, expected_batch_size=1)
    release([BoundedSum((noised,), (grads,), bound=1.0, name=PART)], {}, step=0)
    assert noised.grad is not None
    return noised.grad.numpy()


def _leading(matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest eigenvalues, and their eigenvectors as rows with signs that do not depend on the solver.

    Largest, not of largest magnitude: noise alone makes eigenvalues far below zero.
    """
    d = len(matrix)
    values, vectors = linalg.eigh(matrix, subset_by_index=(d - k, d - 1))
    vectors = vectors.T[::-1]
    longest = np.take_along_axis(vectors, np.abs(vectors).argmax(1, keepdims=True), axis=1)
    return values[::-1].copy(), vectors * np.sign(longest)
