"""Collation, mapped files and Arrow tables: microbatches of the right rows, and no other row is read."""

import warnings
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from noisette import OwnRecords, PerExampleClip, PrivacyError, Users
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.loading import records_of, without_frames
from noisette.run.sampling import UserRecords
from small_loop import small_model, square, start, take_steps

AT = np.array([2, 5, 9])


class Scaled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(10 * value for value in super().__getitem__(index))


class Named(TensorDataset):
    name = "rows"


def test_code_of_a_data_set_of_tensors_is_called():
    x = torch.arange(24.0).view(12, 2)
    [scaled], [plain] = records_of(Scaled(x)).gather(AT), records_of(Named(x)).gather(AT)
    assert torch.equal(scaled, 10 * x[AT])
    assert torch.equal(plain, x[AT])


def test_masked_values_are_refused():
    with pytest.raises(TypeError, match=r"masked values.*filled"):
        records_of((np.ma.masked_array(np.ones((3, 2)), mask=False), np.ones(3)))


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support")
def test_rows_of_sparse_columns_and_of_no_other_layout():
    x, of = torch.eye(12, 5).double(), lambda model, x: square(model, x.to_dense())
    of_each = [
        take_steps(start(small_model(), (column,), sampling_rate=1.0, noise_multiplier=1e-12), of, steps=1)[0].grads
        for column in (x, x.to_sparse())
    ]
    torch.testing.assert_close(*of_each, rtol=1e-6, atol=1e-9)
    for refused in (x.to_sparse_csr, x.to_sparse_csc):
        with pytest.raises(TypeError, match=r"sparse_cs.*to_dense"):
            records_of((refused(),))
        with pytest.raises(TypeError, match=r"sparse_cs.*to_dense"):
            PerExampleClip(small_model(), 1.0).accumulate(of, refused())


def test_a_column_without_numbers_is_refused_and_its_remedy_trains():
    dates = np.datetime64("2024-01-01") + np.arange(5)
    with pytest.raises(TypeError, match=r"datetime64\[D\].*timedelta64"):
        records_of((torch.ones(5), dates))
    days = ((dates - dates[0]) / np.timedelta64(1, "D")).astype(np.float32)
    _, rows = records_of((torch.ones(5), days)).gather(np.arange(5))
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_rows_of_mapped_files(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(60.0, dtype=np.float32).reshape(20, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for view in (mapped, mapped[4:, 1:], mapped.T.T, mapped[:, 0]):
        first, second = records_of((view, view)).gather(AT)
        assert torch.equal(first, torch.from_numpy(np.array(view[AT])))
        assert torch.equal(second, first)
    assert np.shares_memory(records_of(mapped).gather._columns, mapped), "the file is not read whole"  # pyright: ignore


class Table(Dataset):
    """Like a table of Arrow: rows are asked for together, and a transform may see all that are asked for at once."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 10**9

    def __getitems__(self, at: list[int]) -> list[dict[str, Any]]:
        self.asked.append(at)
        return [{"x": torch.tensor([float(k)], dtype=torch.float64), "label": k % 2} for k in at]

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise AssertionError("not as a loader does it")


@pytest.mark.parametrize("collate", [None, default_collate, lambda records: default_collate(records)])
def test_rows_of_a_table_are_asked_for_one_at_a_time(collate):
    table, at = Table(), np.array([1, 10**9 - 1])
    found = records_of(table, collate).gather(at)
    assert (table.asked, found["label"].tolist()) == ([[1], [10**9 - 1]], [1, 1])
    assert found["x"].tolist() == [[1.0], [float(10**9 - 1)]]


FRAME = pandas.DataFrame({"age": [30.0, 40.0, 50.0] * 4, "old": [False, True, True] * 4, "label": range(12)})


def test_frames_of_pandas_are_columns_alone_and_a_matrix_beside_others():
    alone = records_of(without_frames(FRAME)).gather(AT)
    assert (alone["age"].tolist(), alone["label"].tolist()) == ([50, 50, 30], AT.tolist())
    frame, labels = FRAME[["age", "old"]].set_index(FRAME.index[::-1]), FRAME["label"]
    for given in ((frame, labels), {"x": frame, "y": labels}):
        found = records_of(without_frames(given)).gather(AT)
        x, y = found.values() if isinstance(found, dict) else found
        assert (x.tolist(), y.tolist()) == ([[50, 1], [50, 1], [30, 0]], AT.tolist())
    with pytest.raises(TypeError, match=r"^'city' of the frame hold no plain numbers: leave them out"):
        without_frames(FRAME.assign(city="Oslo"))
    assert without_frames(FRAME.assign(city="Oslo").drop(columns="city")).keys() == set(FRAME)


@pytest.mark.parametrize("kind", ["frame", "array", "saved"])
def test_a_private_run_takes_numbers_in_double_precision_and_says_so(kind, tmp_path):
    x, y = FRAME[["age"]] / 50, FRAME["label"] % 2
    arrays = x.to_numpy(), y.to_numpy()
    with pytest.warns(UserWarning, match=r"type float64, and the weights of the model torch.float32"):
        run = start(torch.nn.Linear(1, 2), arrays if kind == "array" else (x, y), ledger=tmp_path / "ledger.jsonl")
    with run:  # in double precision the model would refuse them
        take_steps(run, steps=2)
        if kind == "saved":
            run.save(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(torch.nn.Linear(1, 2).double(), arrays).close()


HELD = torch.arange(200.0).view(100, 2)


@pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
def test_parts_make_the_whole_batch(rate):
    sampler = PoissonSampler(100, rate, SecretKey())
    for step in range(30):
        whole, loaded = sampler.indices(step=step), []
        for first, end in [(0, 37), (37, 37), (37, 90), (90, 100)]:
            own = records_of(OwnRecords(HELD[first:end], first=first, of=100))
            assert own.size == 100
            held = own.held(whole)
            assert held.tolist() == [at - first for at in whole.tolist() if first <= at < end]
            loaded.append(own.gather(held))
        assert torch.equal(torch.cat(loaded), HELD[whole])


@pytest.mark.parametrize(("first", "of"), [(-1, 10), (8, 10), (0, 2)])
def test_parts_outside_are_refused(first, of):
    with pytest.raises(ValueError, match=r"first >= 0|are not a part of"):
        OwnRecords(HELD[:3], first=first, of=of)
    with pytest.raises(TypeError, match="whole number"):
        OwnRecords(HELD[:3], first=0.0, of=10)  # pyright: ignore[reportArgumentType]


def test_a_run_trains_on_its_own_and_counts_none_of_it():
    """Two parts of other lengths have the same public numbers, and the batch is drawn from all records."""
    released = []
    for first, end in ((0, 40), (40, 100)):
        own = OwnRecords(HELD[first:end], first=first, of=100)
        with start(nn.Linear(2, 1), own, expected_batch_size=50, steps=1, delta=1e-3) as run:
            assert run._sampler.size == 100  # pyright: ignore[reportAttributeAccessIssue]
            assert (take_steps(run, square)[0].indices < end - first).all()
        released.append((run.event, run.terms.expected_batch_size, run.steps, run.epsilon(delta=1e-3)))
    assert released[0] == released[1]


def test_users_of_own_records():
    """The ids are those of all records; what a batch may hold is checked at their places."""
    users = UserRecords(np.array([0, 0, 1, 1]), 1, SecretKey())
    own = users.of(records_of(OwnRecords(HELD[2:4], first=2, of=4)), 1)
    [kept] = np.flatnonzero(users.kept[2:])
    own.check_batch(np.array([kept]))
    with pytest.raises(PrivacyError, match="not one that the run has drawn"):
        own.check_batch(np.array([1 - kept]))
    with pytest.raises(TypeError, match="list of ids"):
        Users(lambda record: 0, most_records=1).numbers(OwnRecords(HELD[2:4], first=2, of=4), 4)
