"""The verdict on one step: whether it leaks more than claimed, and whether it is the mechanism that was documented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy.special import ndtri

from noisette._internal import checks
from noisette.audit.canary_models import Canaries, CanaryModel
from noisette.audit.certificate import certified_mu, epsilon_of
from noisette.audit.scores import Scores
from noisette.audit.step_game import MakesBound, Step, play_step, run_step_game

FALSE_ALARM = 1e-9
_LAGS_LEFT_OUT = 20  # the longest ones, of which there is next to nothing in a step


class Verdict(Enum):
    """What came of an audit, worst first."""

    VIOLATION = "violation"
    NOT_AS_DOCUMENTED = "not as documented"
    CONSISTENT = "consistent"

    @staticmethod
    def worst(verdicts: Sequence[Verdict]) -> Verdict:
        """The first of all verdicts that one of these is."""
        return next((verdict for verdict in Verdict if verdict in verdicts), Verdict.CONSISTENT)


@dataclass(frozen=True)
class Check:
    """One number that lies within ``limit`` of zero for the documented mechanism, but for a false alarm."""

    name: str
    z: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it does."""
        return abs(self.z) <= self.limit


class StepAudit:
    """What the scores of a game say about the mechanism that made them.

    ``claimed_mu`` is how many deviations one record may move a release, and ``certified_mu`` how many it moves it at
    least. ``checks`` hold mechanism and documents against each other, both ways: too much noise is a finding too.

    Args:
        scores: of the game.
        false_alarm: probability with which the right mechanism is called a violation, and fails each of the checks.

    Guarantee: the probability of a false alarm is that of the documented Gaussian mechanism with independent noise. A
    proof about any mechanism whatever would need canaries in runs of their own.
    Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", section 4.
    """

    def __init__(self, scores: Scores, *, false_alarm: float = FALSE_ALARM) -> None:
        checks.open_fraction(false_alarm=false_alarm)
        self.scores = scores
        self.false_alarm = false_alarm
        self.claimed_mu = 1 / scores.noise_multiplier
        self.certified_mu = certified_mu(
            scores.of_those_in, scores.of_those_out, threshold=scores.shift / 2, alpha=false_alarm
        )
        self.checks = tuple(_checks(scores, false_alarm))

    def claimed_epsilon(self, *, delta: float) -> float:
        """What one step may cost at this delta."""
        return epsilon_of(self.claimed_mu, delta=delta)

    def certified_epsilon(self, *, delta: float) -> float:
        """What one step costs at this delta at least, as a Gaussian mechanism."""
        return epsilon_of(self.certified_mu, delta=delta)

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; nothing if the mechanism is the documented one."""
        leak = (
            f"one record moves the release by {self.certified_mu:.3g} deviations or more, {self.claimed_mu:.3g} claimed"
        )
        found = [leak] if self.certified_mu > self.claimed_mu else []
        return (
            *found,
            *(f"{c.name}: z = {c.z:.1f}, within {c.limit:.1f} expected" for c in self.checks if not c.passed),
        )

    @property
    def verdict(self) -> Verdict:
        """Violation if the claim is refuted; not as documented if a check failed."""
        if self.certified_mu > self.claimed_mu:
            return Verdict.VIOLATION
        return Verdict.CONSISTENT if all(check.passed for check in self.checks) else Verdict.NOT_AS_DOCUMENTED

    def facts(self, *, delta: float) -> dict[str, Any]:
        """All numbers, as plain values. They are about canaries alone."""
        return {
            "verdict": self.verdict.value,
            "noise_multiplier": self.scores.noise_multiplier,
            "scores": self.scores.values.size,
            "false_alarm": self.false_alarm,
            "claimed_mu": self.claimed_mu,
            "certified_mu": self.certified_mu,
            "delta": delta,
            "claimed_epsilon": self.claimed_epsilon(delta=delta),
            "certified_epsilon": self.certified_epsilon(delta=delta),
            "checks": {check.name: {"z": check.z, "limit": check.limit} for check in self.checks},
            "findings": list(self.findings),
        }


def audit_bound(
    bound_of: MakesBound,
    *,
    noise_multiplier: float,
    canary_model: CanaryModel | None = None,
    steps: int = 24,
    false_alarm: float = FALSE_ALARM,
) -> StepAudit:
    """Audit a way of bounding, through the real loop of :func:`noisette.privatize`.

    The arguments are those of :func:`play`, and ``false_alarm`` is that of :class:`StepAudit`.

    >>> from noisette import PerExampleClip
    >>> audit = audit_bound(lambda model: PerExampleClip(model, 0.7), noise_multiplier=1.0, steps=4)
    >>> audit.verdict
    <Verdict.CONSISTENT: 'consistent'>
    """
    scores = run_step_game(bound_of, noise_multiplier=noise_multiplier, canary_model=canary_model, steps=steps)
    return StepAudit(scores, false_alarm=false_alarm)


def audit_step(
    step: Step,
    *,
    bound: float,
    noise_multiplier: float,
    canaries: Canaries | None = None,
    steps: int = 24,
    false_alarm: float = FALSE_ALARM,
) -> StepAudit:
    """Audit a training step of your own, from whatever library.

    The arguments are those of :func:`play_step`, and ``false_alarm`` is that of :class:`StepAudit`.
    """
    scores = play_step(step, bound=bound, noise_multiplier=noise_multiplier, canaries=canaries, steps=steps)
    return StepAudit(scores, false_alarm=false_alarm)


def assert_consistent(audit: StepAudit) -> None:
    """For your tests: the audit found nothing.

    Raises:
        AssertionError: saying what it found.
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
    """How far the spread is from 1, in deviations; 0 where there are too few to have one.

    The cube root of a variance is all but normal, also that of a few values.
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
    """How far the distance of the means is from ``shift``, in deviations."""
    if not inside.size or not outside.size:
        return 0.0
    return float((inside.mean() - outside.mean() - shift) / math.sqrt(1 / inside.size + 1 / outside.size))


def peak_within_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of a step's noise with itself at any lag, and how many lags were looked at."""
    steps, n = residuals.shape
    lags = n - 1 - _LAGS_LEFT_OUT
    if lags < 1:
        return 0.0, 1
    spectrum = np.abs(np.fft.rfft(residuals, 2 * n, axis=1)) ** 2
    products = np.fft.irfft(spectrum, axis=1)[:, 1 : lags + 1]
    return _peak(products, n - np.arange(1, lags + 1)), steps * lags


def peak_across_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of the noise of two steps, and how many pairs there are."""
    steps, n = residuals.shape
    if steps < 2:
        return 0.0, 1
    products = (residuals @ residuals.T)[np.triu_indices(steps, 1)]
    return _peak(products, np.full(products.shape, n)), products.size


def _peak(sums: np.ndarray, terms: np.ndarray) -> float:
    """The largest z that is as rare as one of these sums of products of independent normal numbers can be.

    Chernoff: the logarithm of the moment generating function of a sum of n products x y, all of different x and y or
    each of them in two, is at most -n/8 ln(1 - 4 t^2); the rarity is e^(-z^2 / 2).
    """
    size = np.abs(sums)
    t = (np.sqrt(terms**2 + 16.0 * size**2) - terms) / (8 * np.maximum(size, 1e-300))
    exponent = t * size + terms / 8 * np.log1p(-4 * np.minimum(t, 0.5 * (1 - 1e-15)) ** 2)
    return float(np.sqrt(2 * np.maximum(exponent, 0).max()))


def _peak_limit(looks: int, alpha: float) -> float:
    return math.sqrt(2 * math.log(2 * looks / alpha))
