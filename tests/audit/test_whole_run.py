"""Whole runs: the guarantee is consistent for the real sampler, noise and accountant, and refuted for wrong ones."""

from __future__ import annotations

import pytest

from noisette import PerExampleClip
from noisette.audit import Axes, LipschitzAxes, Verdict, audit_run, certified_epsilon
from noisette.clipping.engines import ReweightGP
from noisette.core.batches import PoissonSampler
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy


def clip(model) -> PerExampleClip:
    return PerExampleClip(model, 0.7)


# Noise, rate and steps; what is certified at delta 1e-2 at least.
SETTINGS = [(1.0, 0.1, 100, 1.4), (0.7, 0.05, 100, 1.2), (2.0, 1.0, 10, 1.7)]


@pytest.mark.parametrize(("sigma", "rate", "steps", "least"), SETTINGS)
def test_real_runs_keep_their_guarantee_and_the_audit_has_power(
    sigma: float, rate: float, steps: int, least: float
) -> None:
    told = []
    audit = audit_run(
        clip, noise_multiplier=sigma, sampling_rate=rate, steps=steps, on_step=lambda done, of: told.append((done, of))
    )
    assert audit.verdict is Verdict.CONSISTENT
    at_percent = audit.points[0]
    assert at_percent.delta == 1e-2
    assert least < at_percent.certified < at_percent.guaranteed
    assert told == [(k + 1, steps) for k in range(steps)]


def test_axes_of_two_layers_are_audited() -> None:
    audit = audit_run(
        lambda model: PerExampleClip(model, 0.7, engine=ReweightGP()),
        noise_multiplier=0.5,
        sampling_rate=0.5,
        steps=4,
        canary_model=Axes(2_000, 20),
    )
    assert audit.inside.size == audit.outside.size == 1_000
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.points[0].certified > 0.5
    for point in audit.points:
        proven = certified_epsilon(audit.inside, audit.outside, delta=point.delta, alpha=1e-6 / 2)
        assert point.certified == proven, "the false alarm is divided among the deltas"


def test_a_sampling_rate_larger_than_accounted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PoissonSampler.indices

    def more(self, *, step):
        return real(PoissonSampler(self.size, min(1.0, 5 * self.sampling_rate), self.key), step=step)

    monkeypatch.setattr(PoissonSampler, "indices", more)
    audit = audit_run(clip, noise_multiplier=0.7, sampling_rate=0.05, steps=40)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.findings[0].startswith("at delta=0.01 the run costs epsilon=")


def test_lipschitz_networks_are_audited() -> None:
    def bound_of(model) -> LipschitzBound:
        return LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=LipschitzAxes().input_shape)

    audit = audit_run(bound_of, noise_multiplier=0.5, sampling_rate=0.5, steps=2, canary_model=LipschitzAxes())
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.inside.size == 256
