"""Records that each process holds for itself: one batch of all of them, of which each process loads its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from noisette import OwnRecords, PrivacyError, Users
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.loading import records_of
from noisette.run.sampling import UserRecords
from small_loop import square, start, take_steps

X = torch.arange(200.0).view(100, 2)
PARTS = [(0, 37), (37, 37), (37, 90), (90, 100)]


@pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
def test_parts_make_the_whole_batch(rate: float) -> None:
    sampler = PoissonSampler(100, rate, SecretKey())
    for step in range(30):
        whole = sampler.indices(step=step)
        loaded = []
        for first, end in PARTS:
            own = records_of(OwnRecords(X[first:end], first=first, of=100))
            assert own.size == 100
            held = own.held(whole)
            assert held.tolist() == [at - first for at in whole.tolist() if first <= at < end]
            loaded.append(own.gather(held))
        assert torch.equal(torch.cat(loaded), X[whole])


@pytest.mark.parametrize(("first", "of"), [(-1, 10), (8, 10), (0, 2)])
def test_parts_outside_are_refused(first: int, of: int) -> None:
    with pytest.raises(ValueError, match=r"first >= 0|are not a part of"):
        OwnRecords(X[:3], first=first, of=of)
    with pytest.raises(TypeError, match="whole number"):
        OwnRecords(X[:3], first=0.0, of=10)  # pyright: ignore[reportArgumentType]


def test_a_run_trains_on_its_own_and_counts_none_of_it() -> None:
    """Two parts of other lengths have the same public numbers, and the batch is drawn from all records."""
    released = []
    for first, end in ((0, 40), (40, 100)):
        own = OwnRecords(X[first:end], first=first, of=100)
        with start(nn.Linear(2, 1), own, expected_batch_size=50, steps=1, delta=1e-3) as run:
            assert run._sampler.size == 100  # pyright: ignore[reportAttributeAccessIssue]
            assert (take_steps(run, square)[0].indices < end - first).all()
        released.append((run.event, run.terms.expected_batch_size, run.steps, run.epsilon(delta=1e-3)))
    assert released[0] == released[1]


def test_users_of_own_records() -> None:
    """The ids are those of all records; what a batch may hold is checked at their places."""
    users = UserRecords(np.array([0, 0, 1, 1]), 1, SecretKey())
    own = users.of(records_of(OwnRecords(X[2:4], first=2, of=4)), 1)
    assert own.check_batch is not None
    [kept] = np.flatnonzero(users.kept[2:])
    own.check_batch(np.array([kept]))
    with pytest.raises(PrivacyError, match="not one that the run has drawn"):
        own.check_batch(np.array([1 - kept]))
    with pytest.raises(TypeError, match="list of ids"):
        Users(lambda record: 0, most_records=1).numbers(OwnRecords(X[2:4], first=2, of=4), 4)
