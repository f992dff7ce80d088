"""Runs with banded noise, attacked by the likelihood ratio of a whole run, by one who knows each record's group."""

from __future__ import annotations

import numpy as np
import pytest

from noisette import CyclicPoisson
from noisette.audit.certificate import certified_epsilon, certified_mu
from noisette.core.noise import GaussianNoise
from noisette.noise.banded import BandedNoise, banded_coefficients
from noisette.run.sampling import CyclicPoissonSampler
from row_attack import row_steps

RECORDS, BANDS, STEPS, DELTA, NOISE = 40_000, 4, 24, 0.01, 2.0
ROUNDS, ALPHA = STEPS // BANDS, 1e-6


def released(rate: float) -> tuple[np.ndarray, np.ndarray, float]:
    """What was released along the column of each record's steps, these columns' squared norms, both (rounds, records),
    and the guaranteed epsilon; ``rate`` is that within a group.
    """
    guaranteed, steps, groups = 0.0, [], np.arange(RECORDS) % BANDS
    for run, moved in row_steps(
        RECORDS,
        1,
        noise=NOISE,
        sampling=CyclicPoisson(BANDS),
        sampling_rate=rate / BANDS,
        expected_batch_size=RECORDS / 2 * rate / BANDS,
        steps=STEPS,
    ):
        steps.append(moved)
        groups[: RECORDS // 2] = run._sampler._groups  # pyright: ignore
        guaranteed = run.epsilon(delta=DELTA)
    coefficients = banded_coefficients(BANDS, STEPS)
    c = np.sum([np.diag(np.full(STEPS - k, value), -k) for k, value in enumerate(coefficients)], axis=0)
    turns = np.arange(ROUNDS)[:, None] * BANDS + groups
    along = np.take_along_axis(c.T @ c @ np.array(steps), turns, axis=0)
    return along, np.square(c).sum(0)[turns], guaranteed


def halves(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return scores[: RECORDS // 2], scores[RECORDS // 2 :]


def mu() -> float:
    """The certified distance of scores with and without a record that is in a batch of each round."""
    along, squares, _ = released(1.0)
    scores = along.sum(0) / np.sqrt(squares.sum(0))
    return certified_mu(*halves(scores), threshold=0.5 * ROUNDS**0.5 / NOISE, alpha=ALPHA)


def test_rounds_are_gaussian_mechanisms_and_nothing_more() -> None:
    priced = ROUNDS**0.5 / NOISE
    assert 0.85 * priced < mu() < priced


def test_the_guarantee_of_sampled_rounds_holds_and_the_attack_has_power() -> None:
    along, squares, guaranteed = released(0.5)
    scores = np.log1p(0.5 * np.expm1(along / NOISE - squares * NOISE**-2 / 2)).sum(0)
    assert 0.4 * guaranteed < certified_epsilon(*halves(scores), delta=DELTA, alpha=ALPHA) < guaranteed


def test_a_record_that_is_in_neighbouring_batches_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CyclicPoissonSampler, "indices", lambda self, step: np.arange(self.size))
    assert mu() > 1.5 * ROUNDS**0.5 / NOISE


def test_columns_that_are_too_long_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of a matrix whose columns have norm 1.25."""

    def longer(independent: GaussianNoise, coefficients: tuple[float, ...]) -> BandedNoise:
        made = BandedNoise(independent, coefficients)
        made._first *= 1.25
        return made

    monkeypatch.setattr("noisette.run.private.BandedNoise", longer)
    assert mu() > 1.1 * ROUNDS**0.5 / NOISE
