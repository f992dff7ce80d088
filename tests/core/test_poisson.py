"""Batches are Poisson, from the secret key alone, whole, and in the form of the data set."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from noisette import PrivacyError
from noisette.core import batches as poisson
from noisette.core.batches import Batch, PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.loading import Fetch, MeasuredSize, Thread, UnmeasuredMemory, records_of

Z = 6.1


def inclusions(size: int, rate: float, steps: int) -> np.ndarray:
    """1 where a record was in a step's batch, shape (steps, size)."""
    sampler = PoissonSampler(size=size, sampling_rate=rate, key=SecretKey())
    table = np.zeros((steps, size))
    for step in range(steps):
        table[step, sampler.indices(step=step)] = 1
    return table


def check_poisson(table: np.ndarray, rate: float) -> None:
    """Records included equally often (Q1), sizes that vary as they should (Q2), no memory (Q3), no pairs (Q4)."""
    steps, size = table.shape
    spread = rate * (1 - rate)
    chi = ((table.sum(0) - steps * rate) ** 2 / (steps * spread)).sum()
    assert 1e-9 < stats.chi2.cdf(chi, size) < 1 - 1e-9
    sizes = table.sum(1)
    assert abs(sizes.mean() - size * rate) / math.sqrt(size * spread / steps) <= Z
    chi = ((sizes - size * rate) ** 2 / (size * spread)).sum()
    assert 1e-9 < stats.chi2.cdf(chi, steps) < 1 - 1e-9
    centred = (table - rate) / math.sqrt(spread)
    for lag in range(1, 20):
        assert abs((centred[lag:] * centred[:-lag]).sum()) / math.sqrt((steps - lag) * size) <= Z
        assert abs((centred[:, lag:] * centred[:, :-lag]).sum()) / math.sqrt((size - lag) * steps) <= Z
    assert np.abs(((centred.T @ centred) / math.sqrt(steps))[~np.eye(size, dtype=bool)]).max() <= 8


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_law(rate: float) -> None:
    check_poisson(inclusions(size=200, rate=rate, steps=3000), rate)


def test_batches_are_a_function_of_key_and_step() -> None:
    key = SecretKey(bytes(32))
    one, two = (PoissonSampler(size=500, sampling_rate=0.3, key=key) for _ in range(2))
    np.testing.assert_array_equal(one.indices(step=3), two.indices(step=3))
    assert not np.array_equal(one.indices(step=3), one.indices(step=4))
    other = PoissonSampler(size=500, sampling_rate=0.3, key=SecretKey())
    assert not np.array_equal(one.indices(step=3), other.indices(step=3))


def test_seeds_do_not_reach_it() -> None:
    def sampled() -> np.ndarray:
        torch.manual_seed(0)
        np.random.seed(0)
        return PoissonSampler(size=500, sampling_rate=0.3, key=SecretKey()).indices(step=0)

    assert not np.array_equal(sampled(), sampled())


def test_a_record_does_not_see_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coin is its own: neither the data set's length nor how many coins are tossed at once change it."""
    key = SecretKey(bytes(32))
    long = PoissonSampler(size=1000, sampling_rate=0.4, key=key).indices(step=2)
    short = PoissonSampler(size=777, sampling_rate=0.4, key=key).indices(step=2)
    np.testing.assert_array_equal(short, long[long < 777])
    monkeypatch.setattr(poisson, "_CHUNK", 64)
    np.testing.assert_array_equal(PoissonSampler(size=1000, sampling_rate=0.4, key=key).indices(step=2), long)


def test_rates_at_the_ends() -> None:
    np.testing.assert_array_equal(
        PoissonSampler(size=7, sampling_rate=1.0, key=SecretKey()).indices(step=0), np.arange(7)
    )
    for rate in (1e-300, 5e-324):
        assert len(PoissonSampler(size=1000, sampling_rate=rate, key=SecretKey()).indices(step=0)) == 0
    assert len(PoissonSampler(size=1000, sampling_rate=1 - 2**-53, key=SecretKey()).indices(step=0)) == 1000
    assert len(PoissonSampler(size=0, sampling_rate=0.5, key=SecretKey()).indices(step=0)) == 0
    for rate in (0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="sampling_rate"):
            PoissonSampler(size=7, sampling_rate=rate, key=SecretKey())


X = torch.arange(24.0).view(12, 2)
Y = torch.arange(12)


class Records(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return X[i], i


def drawn(indices: np.ndarray, dataset: object = X, **state: int) -> Batch:
    records = records_of(dataset)
    return Batch(indices, records, MeasuredSize(UnmeasuredMemory()), Fetch(Thread(records.gather)), **state)


def seen(dataset: object, indices: np.ndarray, size: int | str) -> list:
    assert records_of(dataset).size == 12
    batch, pieces = drawn(indices, dataset), []
    for piece in batch.microbatches(size):
        pieces.append(piece)
        batch.bounded += batch.current
    return pieces


KINDS = ["tensors", "arrays", "TensorDataset", "Dataset"]


@pytest.mark.parametrize("dataset", [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), Records()], ids=KINDS)
def test_data_sets_of_pairs(dataset: object) -> None:
    indices = np.array([0, 3, 4, 7, 11])
    pieces = seen(dataset, indices, "auto")
    assert [len(x) for x, _ in pieces] == [1, 2, 2]
    assert torch.equal(torch.cat([x for x, _ in pieces]), X[indices])
    assert torch.equal(torch.cat([y for _, y in pieces]), Y[indices])


def test_data_sets_of_one_tensor_and_of_names() -> None:
    indices = np.array([2, 5])
    for dataset in (X, X.numpy(), Subset(X, range(12))):
        assert torch.equal(seen(dataset, indices, 9)[0], X[indices])
    [piece] = seen(OrderedDict(x=X, y=Y.numpy()), indices, 9)
    assert torch.equal(piece["x"], X[indices])
    assert torch.equal(piece["y"], Y[indices])


def test_no_batch_is_cut() -> None:
    x = torch.arange(5000)
    batch, found = drawn(np.arange(5000), x), []
    for piece in batch.microbatches(64):
        found.append(piece)
        batch.bounded += len(piece)
    assert torch.equal(torch.cat(found), x)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(X)


REFUSED: dict[str, list[Any]] = {
    "records cannot be drawn one by one": [DataLoader(Records()), Endless(), iter([1, 2]), 5],
    r"differ in length: \[5, 12\]": [(X, Y[:5]), {"x": X, "y": Y[:5]}],
    "may mean 2 or 12 records: give columns": [[X, Y], [X.numpy(), Y.numpy()], [X, X[:, :1]], [Y.float(), Y]],
    "may mean 1 or 12 records: give columns as a tuple": [({"x": X, "y": Y},), [(Y, Y)], ({"x": X},), [X]],
}


@pytest.mark.parametrize(("message", "dataset"), [(said, each) for said, found in REFUSED.items() for each in found])
def test_what_has_no_records_to_draw_is_refused(message: str, dataset: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        records_of(dataset)


@pytest.mark.parametrize("dataset", [list(X), list(X.numpy()), [list(X)[k] for k in range(12)]], ids=lambda d: "")
def test_a_list_of_record_tensors_is_a_list_of_records(dataset: list) -> None:
    indices = np.array([2, 5, 9])
    assert torch.equal(torch.cat(seen(dataset, indices, 2)), X[indices])


def test_examples_left_out_or_twice_are_refused() -> None:
    batch = drawn(np.arange(6))
    pieces = batch.microbatches(2)
    next(pieces)
    with pytest.raises(PrivacyError, match="0 examples of this batch went through"):
        next(pieces)
    batch = drawn(np.arange(6), bounded=6)
    with pytest.raises(PrivacyError, match="6 examples of this batch went through"):
        next(batch.microbatches(2))
    again = drawn(np.arange(6))
    next(again.microbatches(6))
    assert len(next(again.microbatches(3))) == 3, "a piece that did not fit into memory may be cut anew"
