"""Runs with a guarantee for users, attacked: all records of a user are added, on an axis that the attacker knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from noisette import Users
from noisette.accounting import UserLevel
from noisette.audit import certified_epsilon
from noisette.run.sampling import UserRecords
from row_attack import row_steps

USERS, STEPS, DELTA = 60_000, 30, 0.1


def attack(records: int, most_records: int, *, noise: float, **declared: Any) -> tuple[float, float, UserLevel]:
    """The epsilon that is certified and the one that is guaranteed, and the event, where a user has so many records.

    The score of a user is the exact likelihood ratio of the release: the number of its records in a batch is binomial.
    """
    ids = torch.arange(USERS // 2).repeat(records)
    users = Users(ids, most_records, public_users=declared.pop("public_users", None))
    total, guaranteed, event = np.zeros(USERS), 0.0, None
    for run, moved in row_steps(USERS, records, noise=noise, users=users, steps=STEPS, **declared):
        event, guaranteed = run.event, run.epsilon(delta=DELTA)
        assert isinstance(event, UserLevel)
        shifts = np.arange(event.records + 1)
        weights, mu = stats.binom.logpmf(shifts, event.records, event.sampling_rate), shifts / noise
        total += logsumexp(weights + mu * moved[:, None] - mu**2 / 2, axis=1)
    assert event is not None
    half = USERS // 2
    return certified_epsilon(total[:half], total[half:], delta=DELTA, alpha=1e-6), guaranteed, event


def uncapped(patch: pytest.MonkeyPatch) -> None:
    """Each user keeps all its records, and batches are not checked."""
    make = UserRecords.__init__
    patch.setattr(UserRecords, "__init__", lambda self, users, most, key: make(self, users, 1000, key))
    patch.setattr(UserRecords, "of", lambda self, records, most: records)


RECORDS = {"noise": 2.5, "sampling_rate": 0.1, "expected_batch_size": 12_000.0}


@pytest.mark.parametrize("records", [4, 12])
def test_the_guarantee_holds_for_users_and_is_nearly_reached(records: int) -> None:
    """Also for users with more records than are kept."""
    certified, guaranteed, event = attack(records, 4, **RECORDS)
    assert event.records == 4
    assert 0.6 * guaranteed < certified < guaranteed


def test_without_the_cap_the_guarantee_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    uncapped(monkeypatch)
    certified, guaranteed, _ = attack(12, 4, **RECORDS)
    assert certified > 1.5 * guaranteed


def test_the_guarantee_holds_where_users_are_sampled() -> None:
    certified, guaranteed, event = attack(
        6, 12, noise=1.5, public_users=USERS, public_size=6 * USERS, expected_batch_size=0.3 * USERS, delta=1e-6
    )
    assert (event.records, event.sampling_rate) == (1, pytest.approx(0.3))
    assert 0.6 * guaranteed < certified < guaranteed
