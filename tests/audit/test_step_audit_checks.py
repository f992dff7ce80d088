"""The checks of the step audit pass on the documented mechanism, and each fails on the fault that it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from noisette.audit import Scores, StepAudit, Verdict, assert_consistent, audit_step
from noisette.audit.step_audit import peak_across_steps, peak_within_steps, spread_z


def ideal(random: np.random.Generator, *, steps: int = 8, canaries: int = 128, sigma: float = 1.0) -> Scores:
    """Scores of the Gaussian mechanism, by definition."""
    inside = random.random((steps, canaries)) < 0.5
    return Scores(random.normal(size=(steps, canaries)) + inside / sigma, inside, sigma, 1 / sigma)


def test_false_alarms_have_the_given_rate() -> None:
    """At one in a hundred for each check; 1,000 audits, so ten are expected of each, and the tail beyond 35 is 1e-9."""
    random = np.random.default_rng(12)
    alarms = np.zeros(8)
    for _ in range(1_000):
        scores = ideal(random)
        assert StepAudit(scores).findings == ()
        audit = StepAudit(scores, false_alarm=1e-2)
        alarms += [*(abs(check.z) > check.limit for check in audit.checks), audit.certified_mu > audit.guaranteed_mu]
    assert alarms.max() <= 35


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("tail", [1e-9, 0.5])
def test_z_score_of_the_spread_follows_the_distribution_of_a_variance(n: int, tail: float) -> None:
    """A variance at a quantile of its distribution has about the z of that quantile, also for few values."""
    variance = chi2.isf(tail, n - 1) / (n - 1)
    values = np.resize([1.0, -1.0], n)
    z = spread_z(values * np.sqrt(variance / values.var(ddof=1)))
    assert z == pytest.approx(norm.isf(tail), abs=0.02 if n > 100 else 0.6)
    assert tail > 1e-9 or z < 6.11 + 0.02


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (3, 1), (2, 22)])
def test_the_smallest_audits_have_a_verdict(shape: tuple[int, int]) -> None:
    """One score, one step, one canary, all in or all out."""
    for inside in (True, False):
        scores = Scores(np.zeros(shape), np.full(shape, inside), noise_multiplier=1.0, shift=1.0)
        audit = StepAudit(scores)
        assert audit.certified_mu == 0


def test_peaks_exceed_z_at_most_at_the_stated_rate() -> None:
    """The tail probability of a peak bounds its frequency, also for lags with few terms."""
    random = np.random.default_rng(13)
    samples = random.normal(size=(4_000, 1, 60))
    within = np.array([peak_within_steps(noise) for noise in samples])
    across = np.array([peak_across_steps(noise.reshape(2, 30)) for noise in samples])
    for peaks in (within, across):
        looks = int(peaks[0, 1])
        for z in (2.5, 3.0, 3.5):
            bound = 2 * looks * np.exp(-(z**2) / 2)
            allowed = bound * len(peaks) + 6 * np.sqrt(bound * len(peaks)) + 6
            assert (peaks[:, 0] > z).sum() <= allowed


def test_a_peak_is_the_z_of_a_sum_where_there_are_many_terms() -> None:
    n = 40_000
    for z in (0.0, 2.0, 6.0):
        peak, pairs = peak_across_steps(np.stack([np.ones(n), np.full(n, z / np.sqrt(n))]))
        assert pairs == 1
        assert peak == pytest.approx(z, rel=1e-2)


def test_limits_divide_the_false_alarm_among_all_sums() -> None:
    audit = StepAudit(ideal(np.random.default_rng(16), steps=24, canaries=512), false_alarm=1e-7)
    looks = {"correlation within a step": 24 * 491, "correlation between steps": 24 * 23 // 2}
    for check in audit.checks:
        if check.name in looks:
            assert 2 * looks[check.name] * np.exp(-(check.limit**2) / 2) == pytest.approx(1e-7)
        else:
            assert 2 * norm.sf(check.limit) == pytest.approx(1e-7)


# A training step by hand: clip each record to the bound, add up, add noise. No code of the library.
def by_hand(records: torch.Tensor, *, bound: float = 2.0, sigma: float = 1.0, scale: float = 1.0) -> torch.Tensor:
    clipped = records * (bound / records.norm(dim=1, keepdim=True)).clamp(max=1)
    return scale * (clipped.sum(0) + sigma * bound * torch.randn(records.shape[1]))


def test_a_step_by_hand_is_consistent() -> None:
    audit = audit_step(by_hand, bound=2.0, noise_multiplier=1.0)
    assert_consistent(audit)
    assert audit.certified_mu > 0.6


FAULTS = {
    "half the noise": (lambda x: by_hand(x, sigma=0.5), Verdict.VIOLATION),
    "bound taken twice": (lambda x: by_hand(x, bound=4.0, sigma=0.5), Verdict.VIOLATION),
    "divided by the batch": (lambda x: by_hand(x, scale=1 / 300), Verdict.NOT_AS_DOCUMENTED),
    "twice the noise": (lambda x: by_hand(x, sigma=2.0), Verdict.NOT_AS_DOCUMENTED),
    "one noise for all": (lambda x: by_hand(x, sigma=1e-9) + 2 * torch.randn(1), Verdict.VIOLATION),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_step_by_hand_are_found(fault: str) -> None:
    step, verdict = FAULTS[fault]
    audit = audit_step(step, bound=2.0, noise_multiplier=1.0)
    if fault == "one noise for all":
        assert audit.verdict is not Verdict.CONSISTENT
    else:
        assert audit.verdict is verdict


def test_a_step_that_returns_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected the step to return a tensor of 520 elements, got \(3,\)"):
        audit_step(lambda x: torch.zeros(3), bound=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="got NoneType"):
        audit_step(lambda x: None, bound=1.0, noise_multiplier=1.0)
