"""Private principal components: one record changes the sum by at most one, and only the noised sum is used."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from noisette.accounting import Gaussian, Ledger
from noisette.errors import PrivacyError
from noisette.ranks import Alone
from noisette.run import pca
from noisette.run.pca import PrivatePCA
from page_code import blocks, names_of

COST = (("principal components", 1.0),)
# Rounding error of the difference of two sums over the largest number of records, each of norm at most 2^31.
MOST_ROUNDING = 2 * 2.0**31 * 2.0**-53
HOSTILE = {
    "largest of both signs": [1.7e308, -1.7e308, 1e300, 0, 0, 0, 0],
    "subnormal": [1e-320, -3e-315, 1e-310, 0, 0, 0, 0],
    "thirds": [1 / 3] * 7,
    "near one": [1.0, 2**-26, 2**-26, -(2**-27), 0, 0, 0],
    "zeros": [0.0] * 7,
    "nan": [1.0, math.nan, 1, 1, 1, 1, 1],
    "infinite": [1.0, 1, 1, -math.inf, 1, 1, 1],
}


def sums(rows: Any) -> np.ndarray:
    """The sum before noise."""
    return pca._second_moment(pca._table(rows), Alone()) * pca._UNIT**2


def noised(rows: Any, noise_multiplier: float = 2.0) -> np.ndarray:
    pca = PrivatePCA(np.shape(rows)[1], noise_multiplier=noise_multiplier).fit(rows)
    return (pca.components_.T * pca.eigenvalues_) @ pca.components_


def many_rows(seed: int = 0, n: int = 3000, scales: tuple[float, ...] = (9, 6, 4, 1, 1, 1, 1)) -> np.ndarray:
    generator = np.random.default_rng(seed)
    turn = np.linalg.qr(generator.normal(size=(len(scales), len(scales))))[0]
    return generator.normal(size=(n, len(scales))) * scales @ turn + 0.5


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_changes_the_sum_by_exactly_its_own_outer_product(name):
    others, row = many_rows(), np.array([HOSTILE[name]])
    alone = sums(row)
    for place in (0, 1024, 1500, 3000):
        moved = sums(np.insert(others, place, row, axis=0)) - sums(others)
        np.testing.assert_array_equal(moved, alone)
    assert np.linalg.norm(alone) <= 1 - MOST_ROUNDING
    known = name not in ("zeros", "nan", "infinite")
    assert np.linalg.norm(alone) == pytest.approx(1.0 if known else 0.0, abs=1e-3)


def test_numbers_beyond_double_precision_contribute_nothing():
    with np.errstate(all="raise"):
        assert not sums(np.array([["1e4000", "1"]], dtype=np.longdouble)).any()


def test_the_sum_does_not_depend_on_order_or_batches(monkeypatch):
    rows = many_rows()
    expected = sums(rows)
    np.testing.assert_array_equal(sums(rows[::-1]), expected)
    for size in (1, 7, 5000):
        monkeypatch.setattr(pca, "_ROWS_AT_ONCE", size)
        np.testing.assert_array_equal(sums(rows), expected)


def test_a_sum_that_would_not_be_exact_is_refused():
    ledger = Ledger()
    with pytest.raises(PrivacyError, match="2147483648 records"):
        PrivatePCA(1, noise_multiplier=4.0, ledger=ledger).fit(np.broadcast_to(np.zeros((1, 2)), (2**31, 2)))
    assert not ledger.events


@pytest.mark.parametrize("noise_multiplier", [0.8, 16.0])
def test_noise_has_the_declared_standard_deviation(noise_multiplier):
    d = 400
    matrix = noised(np.zeros((0, d)), noise_multiplier)
    beside = matrix[np.triu_indices(d, 1)]
    for values, expected in ((np.diag(matrix), noise_multiplier), (beside, noise_multiplier / math.sqrt(2))):
        assert abs(values.std() / expected - 1) * math.sqrt(2 * values.size) <= 6.1
        assert abs(values.mean()) / expected * math.sqrt(values.size) <= 6.1


def test_noise_is_fresh_and_no_global_seed_reaches_it():
    rows, found = many_rows(), []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        found.append(noised(rows))
    assert (found[0] != found[1]).all()
    pca = PrivatePCA(2, noise_multiplier=2.0)
    assert (pca.fit(rows).components_ != pca.fit(rows).components_).all()


def test_components_are_those_of_ordinary_uncentred_analysis_where_records_are_many():
    rows = many_rows(n=200_000)
    oracle = TruncatedSVD(3, algorithm="arpack").fit(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    pca = PrivatePCA(3, noise_multiplier=1.0).fit(rows)
    assert np.abs(np.sum(pca.components_ * oracle.components_, axis=1)) == pytest.approx(1.0, abs=1e-6)
    assert pca.eigenvalues_ == pytest.approx(oracle.singular_values_**2, rel=1e-3)


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda rows: rows,
    "column-major array": np.asfortranarray,
    "list": np.ndarray.tolist,
    "tensor with gradient": lambda rows: torch.tensor(rows, requires_grad=True),
    "transposed tensor": lambda rows: torch.tensor(rows.T.copy()).T,
    "sparse array": sparse.coo_array,
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_rows_give_the_same_sum_and_projection(kind):
    rows = many_rows(n=1500)
    given = KINDS[kind](rows)
    np.testing.assert_array_equal(sums(given), sums(rows))
    pca = PrivatePCA(3, noise_multiplier=4.0).fit(rows)
    projected = pca.transform(given)
    assert isinstance(projected, torch.Tensor if "tensor" in kind else np.ndarray)
    np.testing.assert_allclose(np.asarray(projected), rows @ pca.components_.T, rtol=1e-9, atol=1e-9)


def test_data_that_is_no_table_of_numbers_is_refused_without_privacy_cost():
    for rows, message in (
        (np.zeros((5, 2, 2)), "got 3 axes; flatten"),
        (np.array([["a", "b"]]), "got text"),
        (sparse.csr_matrix(np.zeros((5, 2), complex)), "got complex numbers"),
        (torch.zeros(5, 2).to_sparse(), "got torch.sparse_coo; give sparse rows as a scipy"),
    ):
        pca = PrivatePCA(1, noise_multiplier=4.0)
        with pytest.raises(ValueError, match=message) as refusal:
            pca.fit(rows)
        assert "5" not in str(refusal.value)  # the number of records
        assert not pca.ledger.events


def test_invalid_arguments_are_listed_together_without_privacy_cost():
    for settings, message in (
        ({}, "exactly one of noise_multiplier and epsilon"),
        ({"noise_multiplier": 4.0, "epsilon": 1.0, "delta": 1e-5}, "exactly one"),
        ({"epsilon": 0.0, "delta": 1.0}, r"epsilon > 0(.|\n)*delta < 1"),
        ({"n_components": 8, "noise_multiplier": -1}, r"n_components <= 7(.|\n)*noise_multiplier > 0"),
        ({"n_components": 2.5, "noise_multiplier": 4.0}, "whole number"),
    ):
        pca = PrivatePCA(**({"n_components": 2} | settings))
        with pytest.raises(ValueError, match=message):
            pca.fit(many_rows())
        assert not pca.ledger.events


def test_each_fit_has_a_privacy_cost_also_of_a_clone():
    ledger = Ledger()
    pca = PrivatePCA(2, noise_multiplier=4.0, ledger=ledger)
    pca.fit(many_rows()).fit(many_rows())
    pca.transform(many_rows())
    for other in (clone(pca), clone(clone(pca)).set_params(n_components=3)):
        other.fit_transform(many_rows())
    assert ledger.events == {Gaussian(4.0, COST): 4}


def test_the_ledger_is_written_before_the_noise_is_drawn(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"

    def draw(*_: object) -> None:
        assert Ledger.read(path).events == {Gaussian(4.0, COST): 1}
        raise KeyboardInterrupt

    monkeypatch.setattr(pca, "noised", draw)
    with pytest.raises(KeyboardInterrupt):
        PrivatePCA(2, noise_multiplier=4.0, ledger=Ledger(path)).fit(many_rows())
    assert Ledger.read(path).events == {Gaussian(4.0, COST): 1}


def test_estimator_of_scikit_learn():
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-6)
    with pytest.raises(NotFittedError):
        pca.transform(many_rows())
    pipeline = make_pipeline(FunctionTransformer(), pca)
    assert (pipeline.fit_transform(many_rows()).shape, pca.n_features_in_) == ((3000, 3), 7)
    with pytest.raises(ValueError, match="expected 7 features, as in the fit, got 6"):
        pipeline.transform(np.zeros((2, 6)))


def test_page_is_run():
    names = names_of(*blocks("docs/how-to/private-pca.md"))
    assert (names["pca"].components_.shape, names["projected"].shape[1]) == ((20, 64), 20)
    assert sorted(type(event).__name__ for event in names["ledger"].events) == ["Gaussian", "PoissonGaussian"]
    assert 0 < names["epsilon"] < 4
