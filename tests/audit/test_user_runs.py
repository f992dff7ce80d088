"""Runs with a guarantee for users, attacked: all records of a user are added, on an axis that the attacker knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from noisette import PerExampleClip, Users, privatize
from noisette.accounting import UserLevel
from noisette.audit import Rows, certified_epsilon
from noisette.audit.step_game import CanaryAxes
from noisette.sampling.users import UserRecords

USERS, STEPS, RATE, DELTA = 60_000, 30, 0.1, 0.1
Plant = Callable[[pytest.MonkeyPatch], None]


def attack(records: int, users: Users, *, noise: float, **declared: Any) -> tuple[float, float, UserLevel]:
    """The epsilon that is certified and the one that is guaranteed, and the event, of a run in which half of the users
    are, each with so many records that move an axis of their own.

    The score of a user is the exact likelihood ratio of the release: the number of its records in a batch is binomial.
    """
    canaries = Rows(USERS)
    present = canaries.records[: USERS // 2].repeat(records)
    bound = PerExampleClip(canaries.model, 0.7)
    expected = RATE * len(present)
    total, shifts = np.zeros(USERS), np.arange(users.most_records + 1)
    users = replace(users, ids=present)
    with privatize(
        bound,
        torch.optim.SGD(canaries.model.parameters(), lr=0.0),
        present,
        users=users,
        expected_batch_size=expected,
        noise_multiplier=noise,
        steps=STEPS,
        **declared,
    ) as run:
        event = run.event
        assert isinstance(event, UserLevel)
        for batch in run.batches():
            sums = bound.pop_sums()
            for part in batch.microbatches(20_000):
                run.accumulate(lambda model, record: canaries.losses(model(record)), part)
            run.optimizer.step()
            moved = CanaryAxes.of(sums, bound.parameters).scores(USERS, expected)[:, None] / noise
            weights = stats.binom.logpmf(shifts[: event.records + 1], event.records, event.sampling_rate)
            mu = shifts[: event.records + 1] / noise
            total += logsumexp(weights + mu * moved - mu**2 / 2, axis=1)
            run.optimizer.zero_grad()
        guaranteed = run.epsilon(delta=DELTA)
    inside, outside = total[: USERS // 2], total[USERS // 2 :]
    return certified_epsilon(inside, outside, delta=DELTA, alpha=1e-6), guaranteed, event


def uncapped(patch: pytest.MonkeyPatch) -> None:
    """Each user keeps all its records, and batches are not checked."""
    make = UserRecords.__init__
    patch.setattr(UserRecords, "__init__", lambda self, users, most, key: make(self, users, 1000, key))
    patch.setattr(UserRecords, "of", lambda self, records, most: records)


@pytest.mark.parametrize("records", [4, 12])
def test_the_guarantee_holds_for_users_and_is_nearly_reached(records: int) -> None:
    """Also for users with more records than are kept."""
    certified, guaranteed, event = attack(records, Users([], 4), noise=2.5, sampling_rate=RATE)
    assert event.records == 4
    assert 0.6 * guaranteed < certified < guaranteed


def test_without_the_cap_the_guarantee_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    uncapped(monkeypatch)
    certified, guaranteed, _ = attack(12, Users([], 4), noise=2.5, sampling_rate=RATE)
    assert certified > 1.2 * guaranteed


def test_the_guarantee_holds_where_users_are_sampled() -> None:
    declared = {"public_size": 6 * USERS, "delta": 1e-6}
    users = Users([], 12, public_users=USERS)
    certified, guaranteed, event = attack(6, users, noise=1.5, **declared)
    assert (event.records, event.sampling_rate) == (1, pytest.approx(0.3))
    assert 0.6 * guaranteed < certified < guaranteed
