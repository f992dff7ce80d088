"""The audit of one step: whether it leaks more than is guaranteed, and whether it is the documented mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from noisette import errors as checks
from noisette.audit.canary_models import Canaries, CanaryModel
from noisette.audit.certificate import certified_mu, epsilon_of
from noisette.audit.step_game import BoundFactory, Scores, run_step_game

FALSE_ALARM = 1e-9
_LAGS_LEFT_OUT = 20  # the longest, for which a step has few products


class Verdict(Enum):
    """The outcome of an audit, worst first."""

    VIOLATION = "violation"
    NOT_AS_DOCUMENTED = "not as documented"
    CONSISTENT = "consistent"

    @staticmethod
    def worst(verdicts: Sequence[Verdict]) -> Verdict:
        """The worst of these; consistent if there are none."""
        return next((verdict for verdict in Verdict if verdict in verdicts), Verdict.CONSISTENT)


@dataclass(frozen=True)
class Check:
    """A statistic that is within ``limit`` of zero for the documented mechanism, up to the rate of false alarms."""

    name: str
    z: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it is."""
        return abs(self.z) <= self.limit


class StepAudit:
    """What scores of canaries prove about the mechanism that was audited.

    ``guaranteed_mu`` is an upper bound on how many standard deviations of the noise one record moves a release, and
    ``certified_mu`` a lower bound. ``checks`` compare the mechanism with its documentation in both directions: too much
    noise is a finding too.

    Args:
        scores: of a step game.
        false_alarm: probability that the documented mechanism is called a violation, and that it fails each check.

    Guarantee: the probability of a false alarm is that of the documented Gaussian mechanism with independent noise. A
    proof about arbitrary mechanisms would need each canary in a run of its own.
    Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", section 4.
    """

    def __init__(self, scores: Scores, *, false_alarm: float = FALSE_ALARM) -> None:
        checks.open_fraction(false_alarm=false_alarm)
        self.scores = scores
        self.false_alarm = false_alarm
        self.guaranteed_mu = 1 / scores.noise_multiplier
        self.certified_mu = certified_mu(
            scores.of_those_in, scores.of_those_out, threshold=scores.shift / 2, alpha=false_alarm
        )
        self.checks = tuple(_checks(scores, false_alarm))

    def guaranteed_epsilon(self, *, delta: float) -> float:
        """Upper bound on the privacy cost of one step at this delta."""
        return epsilon_of(self.guaranteed_mu, delta=delta)

    def certified_epsilon(self, *, delta: float) -> float:
        """Lower bound on the privacy cost of one step at this delta, for a Gaussian mechanism."""
        return epsilon_of(self.certified_mu, delta=delta)

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if the mechanism is the documented one."""
        leak = (
            f"one record moves the release by {self.certified_mu:.3g} deviations or more; at most "
            f"{self.guaranteed_mu:.3g} are guaranteed"
        )
        found = [leak] if self.certified_mu > self.guaranteed_mu else []
        return (
            *found,
            *(f"{c.name}: z = {c.z:.1f}, expected within {c.limit:.1f} of 0" for c in self.checks if not c.passed),
        )

    @property
    def verdict(self) -> Verdict:
        """Violation if the guarantee is refuted; not as documented if a check failed."""
        if self.certified_mu > self.guaranteed_mu:
            return Verdict.VIOLATION
        return Verdict.CONSISTENT if all(check.passed for check in self.checks) else Verdict.NOT_AS_DOCUMENTED

    def facts(self, *, delta: float) -> dict[str, Any]:
        """All results as plain values. They depend on canaries only, on no record."""
        return {
            "verdict": self.verdict.value,
            "noise_multiplier": self.scores.noise_multiplier,
            "scores": self.scores.values.size,
            "false_alarm": self.false_alarm,
            "guaranteed_mu": self.guaranteed_mu,
            "certified_mu": self.certified_mu,
            "delta": delta,
            "guaranteed_epsilon": self.guaranteed_epsilon(delta=delta),
            "certified_epsilon": self.certified_epsilon(delta=delta),
            "checks": {check.name: {"z": check.z, "limit": check.limit} for check in self.checks},
            "findings": list(self.findings),
        }


def audit_bound(
    bound_of: BoundFactory,
    *,
    noise_multiplier: float,
    canary_model: CanaryModel | None = None,
    steps: int = 24,
    false_alarm: float = FALSE_ALARM,
) -> StepAudit:
    """Audit a gradient bound in the real training loop of :func:`noisette.privatize`.

    The arguments are those of :func:`run_step_game`, and ``false_alarm`` is that of :class:`StepAudit`.

    >>> from noisette import PerExampleClip
    >>> audit = audit_bound(lambda model: PerExampleClip(model, 0.7), noise_multiplier=1.0, steps=4)
    >>> audit.verdict
    <Verdict.CONSISTENT: 'consistent'>
    """
    scores = run_step_game(bound_of, noise_multiplier=noise_multiplier, canary_model=canary_model, steps=steps)
    return StepAudit(scores, false_alarm=false_alarm)


def audit_step(
    step: Callable[[Tensor], Tensor],
    *,
    bound: float,
    noise_multiplier: float,
    canaries: Canaries | None = None,
    steps: int = 24,
    false_alarm: float = FALSE_ALARM,
) -> StepAudit:
    """Audit a training step of your own, written with any library.

    Args:
        step: takes the records of a batch, (n, ``canaries.width``), and returns the noised sum of their clipped
            gradients, flat, (``canaries.width``,): before any division by a batch size, or multiplied with it. The
            audit draws the batches.
        bound: the documented bound on the gradient of one example.
        noise_multiplier: the documented standard deviation of the noise in units of the bound.
        canaries: the records; ``Canaries()`` unless given.
        steps: number of steps.
        false_alarm: that of :class:`StepAudit`.

    Raises:
        ValueError: a number outside its domain, or the step returned something else.
    """
    checks.all_of(
        lambda: checks.positive(bound=bound, noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps)
    )
    canaries = canaries if canaries is not None else Canaries()
    records, generator = canaries.records, np.random.default_rng()
    values, coins = [], []
    for _ in range(steps):
        inside = generator.random(len(records)) < 0.5
        noised = step(records[torch.as_tensor(inside)])
        if not isinstance(noised, Tensor) or noised.numel() != canaries.width:
            got = tuple(noised.shape) if isinstance(noised, Tensor) else type(noised).__name__
            raise ValueError(f"expected the step to return a tensor of {canaries.width} elements, got {got}")
        released = noised.detach().cpu().double().flatten()[: canaries.count].numpy()
        values.append(released / (noise_multiplier * bound))
        coins.append(inside[: canaries.count])
    scores = Scores(np.array(values), np.array(coins), noise_multiplier, 1 / noise_multiplier)
    return StepAudit(scores, false_alarm=false_alarm)


def assert_consistent(audit: StepAudit) -> None:
    """For your tests: raise if the audit found anything.

    Raises:
        AssertionError: with the findings.
    """
    if audit.verdict is not Verdict.CONSISTENT:
        raise AssertionError(f"{audit.verdict.value}: " + "; ".join(audit.findings))


def _checks(scores: Scores, alpha: float) -> list[Check]:
    out, inside, residuals = scores.of_those_out, scores.of_those_in, scores.residuals
    limit = -float(ndtri(alpha / 2))
    peak_within, lags = peak_within_steps(residuals)
    peak_across, pairs = peak_across_steps(residuals)
    return [
        Check("spread of those out", spread_z(out), limit),
        Check("spread of those in", spread_z(inside), limit),
        Check("mean of those out", _mean_z(out), limit),
        Check("shift", shift_z(inside, out, scores.shift), limit),
        Check("coins", float((scores.inside.mean() - 0.5) * 2 * math.sqrt(scores.inside.size)), limit),
        Check("correlation within a step", peak_within, _peak_limit(lags, alpha)),
        Check("correlation between steps", peak_across, _peak_limit(pairs, alpha)),
    ]


def spread_z(values: np.ndarray) -> float:
    """How far the variance is from 1, as a z-score; 0 for fewer than two values.

    The cube root of a variance is close to normal, also for few values.
    Source: Wilson and Hilferty 1931.
    """
    n = values.size - 1
    if n < 1:
        return 0.0
    small = 2 / (9 * n)
    return float((values.var(ddof=1) ** (1 / 3) - 1 + small) / math.sqrt(small))


def _mean_z(values: np.ndarray) -> float:
    return float(values.mean() * math.sqrt(values.size)) if values.size else 0.0


def shift_z(inside: np.ndarray, outside: np.ndarray, shift: float) -> float:
    """How far the difference of the means is from ``shift``, as a z-score."""
    if not inside.size or not outside.size:
        return 0.0
    return float((inside.mean() - outside.mean() - shift) / math.sqrt(1 / inside.size + 1 / outside.size))


def peak_within_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of a step's noise with itself at any lag, and the number of lags tested.

    Args:
        residuals: (steps, canaries).
    """
    steps, n = residuals.shape
    lags = n - 1 - _LAGS_LEFT_OUT
    if lags < 1:
        return 0.0, 1
    # The inverse transform of the power spectrum is the autocorrelation; zero padding keeps it from wrapping around.
    spectrum = np.abs(np.fft.rfft(residuals, 2 * n, axis=1)) ** 2
    products = np.fft.irfft(spectrum, axis=1)[:, 1 : lags + 1]
    return _peak(products, n - np.arange(1, lags + 1)), steps * lags


def peak_across_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of the noise of two steps, and the number of pairs."""
    steps, n = residuals.shape
    if steps < 2:
        return 0.0, 1
    products = (residuals @ residuals.T)[np.triu_indices(steps, 1)]
    return _peak(products, np.full(products.shape, n)), products.size


def _peak(sums: np.ndarray, terms: np.ndarray) -> float:
    """The largest z for which e^(-z^2 / 2) bounds the tail probability of one of these sums.

    Each sum has ``terms`` products of independent standard normal variables x y. Chernoff: where the x and y are all
    different, or each is in two products, the logarithm of the moment generating function of a sum of n products is at
    most -n/8 ln(1 - 4 t^2).
    """
    size = np.abs(sums)
    t = (np.sqrt(terms**2 + 16.0 * size**2) - terms) / (8 * np.maximum(size, 1e-300))
    exponent = t * size + terms / 8 * np.log1p(-4 * np.minimum(t, 0.5 * (1 - 1e-15)) ** 2)
    return float(np.sqrt(2 * np.maximum(exponent, 0).max()))


def _peak_limit(sums: int, alpha: float) -> float:
    return math.sqrt(2 * math.log(2 * sums / alpha))
