"""The step audit of the real training loop: scores of canaries have exactly the documented distribution.

Every gradient bound is audited, and planted faults must be found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from noisette import (
    AdaptiveClip,
    AutomaticClipping,
    FlatClipping,
    GradientBound,
    GroupwiseClipping,
    PerExampleClip,
    PerLayerClipping,
)
from noisette.audit import BehindPublicNorm, LipschitzAxes, Verdict, assert_consistent, audit_bound
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP, Vmap
from noisette.core.clip import Accumulator, Engine
from noisette.core.noise import GaussianNoise
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy

ENGINES = [BookKeeping(), ReweightGP(), PerExampleLoop(), Vmap()]
BOUND = 0.7


def clipping(engine: Engine) -> Callable[[nn.Module], GradientBound]:
    return lambda model: PerExampleClip(model, BOUND, engine=engine)


@pytest.mark.parametrize(
    ("engine", "sigma"),
    [*((BookKeeping(), sigma) for sigma in (0.5, 1.0, 4.0)), *((engine, 1.0) for engine in ENGINES[1:])],
    ids=lambda value: value if isinstance(value, float) else type(value).__name__,
)
def test_real_loop_is_the_documented_mechanism(engine: Engine, sigma: float) -> None:
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
def test_every_clipping_rule_is_the_documented_mechanism(rule) -> None:
    audit = audit_bound(lambda model: PerExampleClip(model, clipping=rule), noise_multiplier=1.0)
    assert_consistent(audit)
    assert audit.scores.shift == pytest.approx(math.sqrt(0.7) if isinstance(rule, AdaptiveClip) else 1)
    assert audit.certified_mu > 0.5


def test_public_batch_norm_is_the_documented_mechanism() -> None:
    audit = audit_bound(clipping(BookKeeping()), noise_multiplier=1.0, canary_model=BehindPublicNorm())
    assert_consistent(audit)
    assert audit.certified_mu > 0.5


LIMITS = {"the loss": None, "clipped": FlatClipping(0.1)}


def lipschitz(limit: str) -> tuple[Callable[[nn.Module], GradientBound], LipschitzAxes]:
    canary_model, loss = LipschitzAxes(), TauCrossEntropy(tau=2.0)
    return lambda model: LipschitzBound(
        model, loss=loss, input_shape=canary_model.input_shape, logit_clipping=LIMITS[limit]
    ), canary_model


@pytest.mark.parametrize("limit", LIMITS)
def test_lipschitz_bound_is_the_documented_mechanism(limit: str) -> None:
    bound_of, canary_model = lipschitz(limit)
    audit = audit_bound(bound_of, noise_multiplier=1.0, canary_model=canary_model)
    assert_consistent(audit)
    assert audit.certified_mu > 0.5


def test_half_of_each_sensitivity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LipschitzBound.sensitivities
    monkeypatch.setattr(LipschitzBound, "sensitivities", lambda self: {name: s / 2 for name, s in real(self).items()})
    bound_of, canary_model = lipschitz("clipped")
    assert audit_bound(bound_of, noise_multiplier=1.0, canary_model=canary_model).verdict is Verdict.VIOLATION


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


def bound_for_each_of_two_parameters(patch: pytest.MonkeyPatch) -> None:
    real = BookKeeping.clipped_sum

    def clipped_sum(self, forward, parameters, clipping):
        clipped = real(self, forward, parameters, clipping)
        return replace(clipped, sums={name: 1.4 * g for name, g in clipped.sums.items()})

    patch.setattr(BookKeeping, "clipped_sum", clipped_sum)


def last_piece_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Accumulator, "add", lambda self, sums: setattr(self, "_sums", dict(sums)))


# Beside the faults of clipping and noise in tests/assurance, which `python -m experiments.assurance audits` runs
MUTANTS: dict[str, tuple[Patch, Verdict]] = {
    "half the noise": (noise_times(0.5), Verdict.VIOLATION),
    "noise x 0.85": (noise_times(0.85), Verdict.NOT_AS_DOCUMENTED),
    "tiled noise": (noise_changed(tiled), Verdict.NOT_AS_DOCUMENTED),
    "noise of two seeds": (noise_changed(of_two_seeds), Verdict.NOT_AS_DOCUMENTED),
    "the bound for each of two parameters": (bound_for_each_of_two_parameters, Verdict.VIOLATION),
    "last piece alone": (last_piece_alone, Verdict.NOT_AS_DOCUMENTED),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_faults_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, verdict = MUTANTS[name]
    patch(monkeypatch)
    audit = audit_bound(clipping(BookKeeping()), noise_multiplier=1.0)
    assert audit.verdict is verdict
    with pytest.raises(AssertionError, match=audit.verdict.value):
        assert_consistent(audit)
