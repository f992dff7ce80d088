"""Runs with batches for users, truncated batches and balls-in-bins batches: what they draw, record and refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from noisette import BallsInBins, Ledger, Poisson, PoissonGaussian, PrivacyError, PrivateRun, TruncatedPoisson, Users
from noisette.accounting import BallsInBinsGaussian, Event, TruncatedPoissonGaussian, UserLevel
from noisette.run.per_example import PerExampleClip
from small_loop import square, start, take_steps

SIZE = 60
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1))
IDS = np.arange(SIZE) % 12  # five records of each user
DECLARED: dict[str, Any] = {"sampling_rate": 0.2, "expected_batch_size": 12, "steps": 10, "noise_multiplier": 1.0}
KINDS: dict[str, tuple[dict[str, Any], Event]] = {
    "Poisson": ({"sampling": Poisson()}, PoissonGaussian(0.2, 1.0)),
    "truncated": ({"sampling": TruncatedPoisson(13, 60)}, TruncatedPoissonGaussian(0.2, 1.0, 13, 60)),
    "balls in bins": ({"sampling": BallsInBins()}, BallsInBinsGaussian(5, 1.0)),
    "users": ({"users": Users(IDS, 3)}, UserLevel(PoissonGaussian(0.2, 1.0), 3)),
    "one record of a user": ({"users": Users(IDS, 1)}, UserLevel(PoissonGaussian(0.2, 1.0), 1)),
}


def begin(folder: Path | None = None, dataset: Any = X, **changes: Any) -> PrivateRun:
    ledger = Ledger(folder / "ledger.jsonl", dataset="mine") if folder else Ledger()
    return start(nn.Linear(3, 1), dataset, ledger=ledger, **DECLARED | changes)


def take_batches(run: PrivateRun, steps: int | None = None, size: Any = 4) -> list[np.ndarray]:
    return [step.indices for step in take_steps(run, square, steps=steps, size=size)]


@pytest.mark.parametrize(("kind", "size"), list(zip(KINDS, [4, "auto"] * 3, strict=False)))
def test_the_ledger_records_how_batches_are_drawn(kind, size):
    given, event = KINDS[kind]
    with begin(**given) as run:
        batches = take_batches(run, size=size)
        assert (run.event, run.ledger.events) == (event, {event: 10})
        assert run.sampling_rate == 0.2
    if kind == "truncated":
        assert max(map(len, batches)) == 13
    if kind == "balls in bins":
        assert sorted(np.concatenate(batches[:5])) == sorted(np.concatenate(batches[5:])) == list(range(SIZE))
        assert any(not np.array_equal(one, other) for one, other in zip(batches[:5], batches[5:], strict=True))
    if kind == "users":
        assert 1 < np.bincount(IDS[np.unique(np.concatenate(batches))]).max() <= 3
    if kind == "one record of a user":
        assert all(np.bincount(IDS[batch]).max(initial=0) <= 1 for batch in batches)


OF_FEW = {"users": Users(IDS, 2, public_users=5)}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "more records than declared": ({"sampling": TruncatedPoisson(13, 59)}, PrivacyError, "60 records"),
    "no number of records": ({"sampling": TruncatedPoisson(13)}, ValueError, "declare public_size"),
    "users in bins": ({"users": Users(IDS, 2), "sampling": BallsInBins()}, ValueError, "batches are Poisson"),
    "a name": ({"sampling": "poisson"}, TypeError, "got 'poisson'"),
    "ids alone": ({"users": IDS}, TypeError, r"expected users to be Users\(ids, most_records\), got a ndarray"),
    "other records": ({"users": Users(IDS[1:], 2)}, ValueError, "59 ids for 60 records"),
    "too few users": (OF_FEW | {"sampling_rate": None, "public_size": 60}, ValueError, "12 records"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_declarations_that_are_refused(case):
    given, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        begin(**given)


CHOICES: dict[str, tuple[dict[str, Any], UserLevel]] = {
    "their number is not public": ({"sampling_rate": 0.2}, UserLevel(PoissonGaussian(0.2, 1.0), 3)),
    "too few users for a batch": ({"public_size": 60, "users": 11}, UserLevel(PoissonGaussian(12 / 33, 1.0), 3)),
    "many users": ({"public_size": 60, "users": 30}, UserLevel(PoissonGaussian(0.4, 1.0), 1)),
    "many records": ({"public_size": 600, "users": 30}, UserLevel(PoissonGaussian(0.4, 1.0), 1)),
}


@pytest.mark.parametrize("case", CHOICES)
@pytest.mark.parametrize("records", [60, 24])
def test_records_or_users_are_sampled_whichever_costs_less(case, records):
    """By declared numbers alone, whatever the number of records and of users is."""
    given, expected = CHOICES[case]
    users = Users(IDS[:records], 3, public_users=given.get("users"))
    declared = {"sampling_rate": None, **{name: value for name, value in given.items() if name != "users"}}
    for noise in ({}, {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3}):
        with begin(dataset=X[:records], users=users, **declared, **noise) as run:
            assert isinstance(run.event, UserLevel)
            found = (run.event.records, run.event.sampling_rate)
            assert found == (expected.records, pytest.approx(expected.sampling_rate))
            if noise:
                assert 2.9 < run.accountant.compose({run.event: run.steps}).epsilon(delta=1e-3) <= 3.0


@pytest.mark.parametrize(("rate", "bins"), [(1.0, 1), (1 / 49, 49), (0.07, 15), (0.3, 4)])
def test_bins_follow_from_the_declared_rate(rate, bins):
    assert BallsInBins().release(rate, None, ())(1.0) == BallsInBinsGaussian(bins, 1.0)
    assert BallsInBins(7).release(rate, None, ())(1.0) == BallsInBinsGaussian(7, 1.0)


def resume(folder: Path, dataset: Any = X, users: Users | None = None) -> PrivateRun:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateRun.resume(folder, PerExampleClip(model, 1.0), optimizer, dataset, users=users)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_with_the_same_kind(kind, tmp_path):
    given, event = KINDS[kind]
    with begin(tmp_path, **given) as run:
        first = take_batches(run, 3)
        run.save(tmp_path)
    run.ledger.close()
    with resume(tmp_path, users=given.get("users")) as again:
        batches = take_batches(again)
        assert (again.event, again.ledger.events) == (event, {event: 10})
    if kind == "balls in bins":
        assert sorted(np.concatenate(batches[:5])) == list(range(SIZE)), "a new pass"
        assert len(np.intersect1d(np.concatenate(first), np.concatenate(batches[:2]))), "not the rest of the old one"


def test_other_users_are_refused(tmp_path):
    with begin(tmp_path, users=Users(IDS, 3)) as run:
        take_batches(run, 2)
        run.save(tmp_path)
    run.ledger.close()
    for users, message in (
        (None, "has a guarantee for users; give it"),
        (Users(IDS, 4), "most_records=4"),
        (Users(np.arange(SIZE), 3), "not the one that the run began with"),
    ):
        with pytest.raises((PrivacyError, ValueError), match=message):
            resume(tmp_path, users=users)
    with resume(tmp_path, users=Users([f"user {k}" for k in IDS], 3)) as run:  # other names of the same users
        take_batches(run, 1)
