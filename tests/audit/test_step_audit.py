"""The step audit of the real training loop, its checks, planted faults, and batches that differ by one record."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import Tensor, nn

from noisette import AdaptiveClip, AutomaticClipping, GradientBound, GroupwiseClipping, PerExampleClip, PerLayerClipping
from noisette.audit import BehindPublicNorm, LipschitzAxes, Scores, StepAudit, Verdict, audit_neighbours, audit_step
from noisette.audit.step_audit import assert_consistent, audit_bound, peak_across_steps, peak_within_steps, spread_z
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP, Vmap
from noisette.clipping.rules import FlatClipping
from noisette.core.clip import Accumulator, Engine
from noisette.core.noise import GaussianNoise
from noisette.core.release import ROUNDING
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy
from small_loop import loss

ENGINES = [BookKeeping(), ReweightGP(), PerExampleLoop(), Vmap()]
BOUND = 0.7


def clipping(engine: Engine) -> Callable[[nn.Module], GradientBound]:
    return lambda model: PerExampleClip(model, BOUND, engine=engine)


@pytest.mark.parametrize(
    ("engine", "sigma"),
    [*((BookKeeping(), sigma) for sigma in (0.5, 1.0, 4.0)), *((engine, 1.0) for engine in ENGINES[1:])],
    ids=lambda value: value if isinstance(value, float) else type(value).__name__,
)
def test_real_loop_is_the_documented_mechanism(engine, sigma):
    slow = isinstance(engine, PerExampleLoop)
    audit = audit_bound(clipping(engine), noise_multiplier=sigma, steps=4 if slow else 24)
    assert_consistent(audit)
    assert sigma == 4 or audit.certified_mu > 0.1, "the audit has power"


RULES = {
    "each layer": PerLayerClipping(BOUND),
    "groups of uneven bounds": GroupwiseClipping({"a": BOUND, "b": 5 * BOUND}),
    "automatic": AutomaticClipping(BOUND),
    "adaptive, with a large count": AdaptiveClip(BOUND, count_share=0.3),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_clipping_rule_is_the_documented_mechanism(rule):
    audit = audit_bound(lambda model: PerExampleClip(model, clipping=rule), noise_multiplier=1.0)
    assert_consistent(audit)
    assert audit.scores.shift == pytest.approx(math.sqrt(0.7) if isinstance(rule, AdaptiveClip) else 1)
    assert audit.certified_mu > 0.5


def test_public_batch_norm_is_the_documented_mechanism():
    audit = audit_bound(clipping(BookKeeping()), noise_multiplier=1.0, canary_model=BehindPublicNorm())
    assert_consistent(audit)
    assert audit.certified_mu > 0.5


def audit_of_layers(limit: FlatClipping | None) -> StepAudit:
    axes = LipschitzAxes()
    declared = {"loss": TauCrossEntropy(tau=2.0), "input_shape": axes.input_shape, "logit_clipping": limit}
    return audit_bound(lambda model: LipschitzBound(model, **declared), noise_multiplier=1.0, canary_model=axes)


@pytest.mark.parametrize("limit", [None, FlatClipping(0.1)], ids=["the loss", "clipped"])
def test_lipschitz_bound_is_the_documented_mechanism(limit):
    audit = audit_of_layers(limit)
    assert_consistent(audit)
    assert audit.certified_mu > 0.5


def test_half_of_each_sensitivity_is_caught(monkeypatch):
    real = LipschitzBound.sensitivities
    monkeypatch.setattr(LipschitzBound, "sensitivities", lambda self: {name: s / 2 for name, s in real(self).items()})
    assert audit_of_layers(FlatClipping(0.1)).verdict is Verdict.VIOLATION


Patch = Callable[[pytest.MonkeyPatch], None]


def noise_changed(change: Callable[..., None]) -> Patch:
    """A mutant that adds its noise by ``change(method of the library, source, tensors, step=..., std=...)``."""
    real = GaussianNoise.add_
    return lambda patch: patch.setattr(
        GaussianNoise, "add_", lambda source, tensors, **numbers: change(real, source, tensors, **numbers)
    )


def noise_times(factor: float) -> Patch:
    def scaled(real, source, tensors, *, step, std, divisor):
        real(source, tensors, step=step, std=std * factor, divisor=divisor)

    return noise_changed(scaled)


def tiled(real, source, tensors, *, step, std, divisor):
    for name, tensor in tensors.items():
        for half in tensor.view(-1).chunk(2):
            real(source, {name: half}, step=step, std=std, divisor=divisor)


def of_two_seeds(real, source, tensors, *, step, std, divisor):
    generator = torch.Generator().manual_seed(step % 2)
    for tensor in tensors.values():
        tensor.div_(divisor).add_(torch.randn(tensor.shape, generator=generator), alpha=std)


def sums_times(factor: float, patch: pytest.MonkeyPatch) -> None:
    real = BookKeeping.clipped_sum

    def clipped_sum(self, forward, parameters, clipping):
        clipped = real(self, forward, parameters, clipping)
        return replace(clipped, sums={name: factor * g for name, g in clipped.sums.items()})

    patch.setattr(BookKeeping, "clipped_sum", clipped_sum)


def last_piece_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Accumulator, "add", lambda self, sums: setattr(self, "_sums", dict(sums)))


# Beside the faults of clipping and noise in tests/assurance, which `python -m experiments.assurance audits` runs
MUTANTS: dict[str, tuple[Patch, Verdict]] = {
    "half the noise": (noise_times(0.5), Verdict.VIOLATION),
    "noise x 0.85": (noise_times(0.85), Verdict.NOT_AS_DOCUMENTED),
    "tiled noise": (noise_changed(tiled), Verdict.NOT_AS_DOCUMENTED),
    "noise of two seeds": (noise_changed(of_two_seeds), Verdict.NOT_AS_DOCUMENTED),
    "the bound for each of two parameters": (partial(sums_times, 1.4), Verdict.VIOLATION),
    "last piece alone": (last_piece_alone, Verdict.NOT_AS_DOCUMENTED),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_faults_are_caught(name, monkeypatch):
    patch, verdict = MUTANTS[name]
    patch(monkeypatch)
    audit = audit_bound(clipping(BookKeeping()), noise_multiplier=1.0)
    assert audit.verdict is verdict
    with pytest.raises(AssertionError, match=audit.verdict.value):
        assert_consistent(audit)


def ideal(random: np.random.Generator, *, steps: int = 8, canaries: int = 128, sigma: float = 1.0) -> Scores:
    inside = random.random((steps, canaries)) < 0.5
    return Scores(random.normal(size=(steps, canaries)) + inside / sigma, inside, sigma, 1 / sigma)


def test_false_alarms_have_the_given_rate():
    """At one in a hundred for each check; 1,000 audits, so ten are expected of each, and the tail beyond 35 is 1e-9."""
    random, alarms = np.random.default_rng(12), np.zeros(8)
    for _ in range(1_000):
        scores = ideal(random)
        assert StepAudit(scores).findings == ()
        audit = StepAudit(scores, false_alarm=1e-2)
        alarms += [*(abs(check.z) > check.limit for check in audit.checks), audit.certified_mu > audit.guaranteed_mu]
    assert alarms.max() <= 35


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("tail", [1e-9, 0.5])
def test_z_score_of_the_spread_follows_the_distribution_of_a_variance(n, tail):
    """A variance at a quantile of its distribution has about the z of that quantile, also for few values."""
    variance, values = chi2.isf(tail, n - 1) / (n - 1), np.resize([1.0, -1.0], n)
    z = spread_z(values * np.sqrt(variance / values.var(ddof=1)))
    assert z == pytest.approx(norm.isf(tail), abs=0.02 if n > 100 else 0.6)
    assert tail > 1e-9 or z < 6.11 + 0.02


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (3, 1), (2, 22)])
def test_the_smallest_audits_have_a_verdict(shape):
    for inside in (True, False):
        audit = StepAudit(Scores(np.zeros(shape), np.full(shape, inside), noise_multiplier=1.0, shift=1.0))
        assert audit.certified_mu == 0


def test_peaks_exceed_z_at_most_at_the_stated_rate():
    """The tail probability of a peak bounds its frequency, also for lags with few terms."""
    samples = np.random.default_rng(13).normal(size=(4_000, 1, 60))
    within = np.array([peak_within_steps(noise) for noise in samples])
    for peaks in (within, np.array([peak_across_steps(noise.reshape(2, 30)) for noise in samples])):
        looks = int(peaks[0, 1])
        for z in (2.5, 3.0, 3.5):
            bound = 2 * looks * np.exp(-(z**2) / 2)
            allowed = bound * len(peaks) + 6 * np.sqrt(bound * len(peaks)) + 6
            assert (peaks[:, 0] > z).sum() <= allowed


def test_a_peak_is_the_z_of_a_sum_where_there_are_many_terms():
    n = 40_000
    for z in (0.0, 2.0, 6.0):
        peak, pairs = peak_across_steps(np.stack([np.ones(n), np.full(n, z / np.sqrt(n))]))
        assert (pairs, peak) == (1, pytest.approx(z, rel=1e-2))


def test_limits_divide_the_false_alarm_among_all_sums():
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


def test_a_step_by_hand_is_consistent():
    audit = audit_step(by_hand, bound=2.0, noise_multiplier=1.0)
    assert_consistent(audit)
    assert audit.certified_mu > 0.6


FAULTS = {
    "half the noise": (lambda x: by_hand(x, sigma=0.5), Verdict.VIOLATION),
    "bound taken twice": (lambda x: by_hand(x, bound=4.0, sigma=0.5), Verdict.VIOLATION),
    "divided by the batch": (lambda x: by_hand(x, scale=1 / 300), Verdict.NOT_AS_DOCUMENTED),
    "twice the noise": (lambda x: by_hand(x, sigma=2.0), Verdict.NOT_AS_DOCUMENTED),
    "one noise": (lambda x: by_hand(x, sigma=1e-9) + 2 * torch.randn(1), Verdict.VIOLATION, Verdict.NOT_AS_DOCUMENTED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_step_by_hand_are_found(fault):
    step, *verdicts = FAULTS[fault]
    assert audit_step(step, bound=2.0, noise_multiplier=1.0).verdict in verdicts


def test_a_step_that_returns_something_else_is_refused():
    with pytest.raises(ValueError, match=r"expected the step to return a tensor of 520 elements, got \(3,\)"):
        audit_step(lambda x: torch.zeros(3), bound=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="got NoneType"):
        audit_step(lambda x: None, bound=1.0, noise_multiplier=1.0)


def draw(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randint(0, 3, (n,))


TAU = TauCrossEntropy(tau=2.0)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


def of_layers() -> GradientBound:
    model = nn.Sequential(BoundedInput(1.0), SpectralLinear(6, 8), GroupSort2(), SpectralLinear(8, 3))
    return LipschitzBound(model, loss=TAU, input_shape=(6,))


BOUNDS = {
    "BookKeeping": lambda: PerExampleClip(network(), 0.5),
    "ReweightGP": lambda: PerExampleClip(network(), 0.5, engine=ReweightGP()),
    "PerExampleLoop": lambda: PerExampleClip(network(), 0.5, engine=PerExampleLoop()),
    "AdaptiveClip": lambda: PerExampleClip(network(), clipping=AdaptiveClip(0.5, count_share=0.2)),
    "LipschitzBound": of_layers,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_record_moves_a_sum_by_no_more_than_the_bound(name):
    by_layers, pairs = name == "LipschitzBound", 6 if name == "PerExampleLoop" else 50
    of = (lambda model, x, y: TAU(model(x), y)) if by_layers else loss
    audit = audit_neighbours(BOUNDS[name](), draw, of, pairs=pairs)
    assert audit.verdict is Verdict.CONSISTENT, audit.findings
    assert audit.reached.shape == (pairs,)
    assert (0.2 if by_layers else 0.99) < audit.worst < 1 + ROUNDING, "the bound is reached, and not exceeded"


def test_a_sum_that_moves_too_far_is_found(monkeypatch):
    sums_times(1.1, monkeypatch)
    audit = audit_neighbours(PerExampleClip(network(), 0.5), draw, loss, pairs=2)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.findings == ("one record moves the sum of a batch by 1.1 times the bound",)
