"""Whole runs, attacked by exact likelihood ratios: Poisson batches, banded noise, balls-in-bins, and users."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from noisette import BallsInBins, CyclicPoisson, PerExampleClip, PrivateRun, Users
from noisette.accounting import UserLevel
from noisette.audit import Axes, LipschitzAxes, Rows, Verdict, audit_run, certified_epsilon, certified_mu
from noisette.audit.step_audit import released_scores
from noisette.clipping.engines import ReweightGP
from noisette.core.batches import PoissonSampler
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.noise.banded import banded_coefficients
from noisette.run.sampling import BallsInBinsSampler, CyclicPoissonSampler

ALPHA = 1e-6


def row_steps(axes: int, records: int, **declared: Any) -> Iterator[tuple[PrivateRun, np.ndarray]]:
    """The run after each step, with how far the release moves each axis in deviations of the noise, (axes,).

    The first half of the axes has so many records each; ``declared`` are arguments of ``privatize``.
    """
    canaries = Rows(axes)
    declared |= {"records": canaries.records[: axes // 2].repeat(records), "microbatch_size": 20_000}
    for run, _, moved, _ in released_scores(PerExampleClip(canaries.model, 0.7), canaries, **declared):
        yield run, moved


def certified(scores: np.ndarray, delta: float) -> float:
    """Epsilon by the scores of all axes, the first half of which has records."""
    return certified_epsilon(*np.split(scores, 2), delta=delta, alpha=ALPHA)


# Banded noise, attacked by one who knows each record's group

BANDS, STEPS, NOISE, DELTA = 4, 24, 2.0, 0.01
ROUNDS = STEPS // BANDS


def banded(rate: float, records: int = 40_000) -> tuple[np.ndarray, np.ndarray, float]:
    """What was released along the column of each record's steps, these columns' squared norms, both (rounds, records),
    and the guaranteed epsilon; ``rate`` is that within a group.
    """
    guaranteed, steps, groups = 0.0, [], np.arange(records) % BANDS
    sizes = {"sampling_rate": rate / BANDS, "expected_batch_size": records / 2 * rate / BANDS, "steps": STEPS}
    for run, moved in row_steps(records, 1, noise_multiplier=NOISE, sampling=CyclicPoisson(BANDS), **sizes):
        steps.append(moved)
        groups[: records // 2] = run._sampler._groups  # pyright: ignore
        guaranteed = run.epsilon(delta=DELTA) if len(steps) == STEPS else 0.0
    coefficients = banded_coefficients(BANDS, STEPS)
    c = np.sum([np.diag(np.full(STEPS - k, value), -k) for k, value in enumerate(coefficients)], axis=0)
    turns = np.arange(ROUNDS)[:, None] * BANDS + groups
    along = np.take_along_axis(c.T @ c @ np.array(steps), turns, axis=0)
    return along, np.square(c).sum(0)[turns], guaranteed


def mu() -> float:
    """The certified distance of scores with and without a record that is in a batch of each round."""
    along, squares, _ = banded(1.0)
    scores = along.sum(0) / np.sqrt(squares.sum(0))
    return certified_mu(*np.split(scores, 2), threshold=0.5 * ROUNDS**0.5 / NOISE, alpha=ALPHA)


def test_rounds_are_gaussian_mechanisms_and_nothing_more():
    priced = ROUNDS**0.5 / NOISE
    assert 0.85 * priced < mu() < priced


def test_the_guarantee_of_sampled_rounds_holds_and_the_attack_has_power():
    along, squares, guaranteed = banded(0.5)
    scores = np.log1p(0.5 * np.expm1(along / NOISE - squares * NOISE**-2 / 2)).sum(0)
    assert 0.4 * guaranteed < certified(scores, DELTA) < guaranteed


def test_a_record_that_is_in_neighbouring_batches_is_told(monkeypatch):
    monkeypatch.setattr(CyclicPoissonSampler, "indices", lambda self, step: np.arange(self.size))
    assert mu() > 1.5 * ROUNDS**0.5 / NOISE


# Balls-in-bins batches: a record is in one batch of each pass

BINS = 60


def of_a_pass(records: int, noise: float = 0.7, delta: float = 0.03) -> tuple[float, float]:
    """The epsilon that is certified and the one that is guaranteed, for a run of one pass."""
    guaranteed, steps = 0.0, []
    sizes = {"sampling_rate": 1 / BINS, "expected_batch_size": records / 2 / BINS, "steps": BINS}
    for run, moved in row_steps(records, 1, noise_multiplier=noise, sampling=BallsInBins(), **sizes):
        steps.append(moved / noise - noise**-2 / 2)
        guaranteed = run.epsilon(delta=delta) if len(steps) == BINS else 0.0
    return certified(logsumexp(np.array(steps), axis=0) - np.log(BINS), delta), guaranteed


def test_the_guarantee_of_a_pass_holds_and_the_attack_has_power():
    found, guaranteed = of_a_pass(60_000)
    assert 0.0 < found < guaranteed, "the price is a bound, and not a tight one"


def test_records_that_are_in_every_batch_are_told(monkeypatch):
    monkeypatch.setattr(BallsInBinsSampler, "indices", lambda self, step: np.arange(self.size))
    found, guaranteed = of_a_pass(6_000)
    assert found > guaranteed


# Users: all records of a user are added, on one axis


def of_users(
    users: int, records: int, most_records: int, *, noise: float, delta: float = 0.1, **declared: Any
) -> tuple[float, float, UserLevel]:
    """The epsilon that is certified and the one that is guaranteed, and the event, where a user has so many records.

    The score of a user is the exact likelihood ratio of the release: the number of its records in a batch is binomial.
    """
    ids = Users(torch.arange(users // 2).repeat(records), most_records, public_users=declared.pop("public_users", None))
    total, guaranteed, event = np.zeros(users), 0.0, None
    for run, moved in row_steps(users, records, noise_multiplier=noise, users=ids, steps=30, **declared):
        event, guaranteed = run.event, run.epsilon(delta=delta)
        assert isinstance(event, UserLevel)
        shifts = np.arange(event.records + 1)
        weights, means = stats.binom.logpmf(shifts, event.records, event.sampling_rate), shifts / noise
        total += logsumexp(weights + means * moved[:, None] - means**2 / 2, axis=1)
    return certified(total, delta), guaranteed, event


USERS = 40_000


@pytest.mark.parametrize("records", [pytest.param(4, marks=pytest.mark.slow), 12])
def test_the_guarantee_holds_for_users_and_is_nearly_reached(records):
    """Also for users with more records than are kept."""
    found, guaranteed, event = of_users(
        USERS, records, 4, noise=2.5, sampling_rate=0.1, expected_batch_size=0.2 * USERS
    )
    assert event.records == 4
    assert 0.6 * guaranteed < found < guaranteed


def test_the_guarantee_holds_where_users_are_sampled():
    sizes: Any = {"public_users": USERS, "public_size": 6 * USERS, "expected_batch_size": 0.3 * USERS}
    found, guaranteed, event = of_users(USERS, 6, 12, noise=1.5, delta=0.1, **sizes)
    assert (event.records, event.sampling_rate) == (1, pytest.approx(0.3))
    assert 0.6 * guaranteed < found < guaranteed


def clip(model) -> PerExampleClip:
    return PerExampleClip(model, 0.7)


# Noise, rate and steps; what is certified at delta 1e-2 at least.
SETTINGS = [(1.0, 0.1, 100, 1.4), (0.7, 0.05, 100, 1.2), (2.0, 1.0, 10, 1.7)]


@pytest.mark.parametrize(("sigma", "rate", "steps", "least"), SETTINGS)
def test_real_runs_keep_their_guarantee_and_the_audit_has_power(sigma, rate, steps, least):
    told = []
    audit = audit_run(
        clip, noise_multiplier=sigma, sampling_rate=rate, steps=steps, on_step=lambda done, of: told.append((done, of))
    )
    assert audit.verdict is Verdict.CONSISTENT
    at_percent = audit.points[0]
    assert at_percent.delta == 1e-2
    assert least < at_percent.certified < at_percent.guaranteed
    assert told == [(k + 1, steps) for k in range(steps)]


def test_axes_of_two_layers_are_audited():
    settings = {"noise_multiplier": 0.5, "sampling_rate": 0.5, "steps": 4, "canary_model": Axes(2_000, 20)}
    audit = audit_run(lambda model: PerExampleClip(model, 0.7, engine=ReweightGP()), **settings)
    assert audit.inside.size == audit.outside.size == 1_000
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.points[0].certified > 0.5
    for point in audit.points:
        proven = certified_epsilon(audit.inside, audit.outside, delta=point.delta, alpha=1e-6 / 2)
        assert point.certified == proven, "the false alarm is divided among the deltas"


def test_a_sampling_rate_larger_than_accounted_is_found(monkeypatch):
    real = PoissonSampler.indices

    def more(self, *, step):
        return real(PoissonSampler(self.size, min(1.0, 5 * self.sampling_rate), self.key), step=step)

    monkeypatch.setattr(PoissonSampler, "indices", more)
    audit = audit_run(clip, noise_multiplier=0.7, sampling_rate=0.05, steps=40)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.findings[0].startswith("at delta=0.01 the run costs epsilon=")


def test_lipschitz_networks_are_audited():
    def bound_of(model) -> LipschitzBound:
        return LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=LipschitzAxes().input_shape)

    audit = audit_run(bound_of, noise_multiplier=0.5, sampling_rate=0.5, steps=2, canary_model=LipschitzAxes())
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.inside.size == 256
