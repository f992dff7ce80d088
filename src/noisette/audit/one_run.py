"""The audit of one training run: what correct guesses about many canaries prove about its privacy.

Each of m canaries is in the data set with probability one half. The attacker guesses "in" for the highest scores and
"out" for the lowest, and abstains for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from noisette import errors as checks
from noisette.audit.certificate import epsilon_of
from noisette.audit.membership import Trainer, confidences_of
from noisette.data import DataSet, Split
from noisette.training.outcome import Watch

_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.95, 0.999
_LARGEST_MU, _LARGEST_EPSILON = 50.0, 100.0
_TRIED_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Guesses:
    """A number of guesses about canaries, and how many were correct."""

    canaries: int
    made: int
    correct: int


@dataclass(frozen=True)
class OneRunAudit:
    """What the guesses about one run prove at this confidence, corrected for the several numbers of guesses tried.

    ``mu`` and ``epsilon``, its privacy cost at ``delta``, hold for mechanisms with a Gaussian trade-off curve;
    ``plain_epsilon`` holds for any (epsilon, delta)-DP mechanism.
    """

    tried: tuple[Guesses, ...]
    delta: float
    confidence: float
    mu: float
    plain_epsilon: float

    @property
    def epsilon(self) -> float:
        """Privacy cost at delta of a Gaussian mechanism with the certified mu."""
        return epsilon_of(self.mu, delta=self.delta)

    def facts(self) -> dict[str, Any]:
        """All results as plain values."""
        return {
            "delta": self.delta,
            "confidence": self.confidence,
            "tried": [{"canaries": t.canaries, "guesses": t.made, "correct": t.correct} for t in self.tried],
            "mu": self.mu,
            "epsilon": self.epsilon,
            "plain_epsilon": self.plain_epsilon,
        }


def audit_guesses(
    scores: np.ndarray,
    inside: np.ndarray,
    *,
    delta: float,
    guesses: Sequence[int] | None = None,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Guess from scores which canaries were in the data set, and certify what the correct guesses prove.

    Args:
        scores: one for each canary, higher the more likely it is in the data set, (m,).
        inside: whether it is, decided by fair coins, (m,).
        delta: of the guarantee.
        guesses: numbers of guesses to try, chosen without these scores; 1 % to 100 % of m unless given.
        confidence: 0.95 to 0.999. At a higher confidence one run proves next to nothing.

    Raises:
        ValueError: a number outside its domain, or scores and coins of different length.
    """
    m = len(scores)
    if not m or scores.shape != inside.shape:
        raise ValueError(f"expected a score and a coin for each canary, got {scores.shape} and {inside.shape}")
    numbers = sorted({max(1, round(m * share)) for share in _TRIED_SHARES}) if guesses is None else list(guesses)
    checks.all_of(
        lambda: checks.open_fraction(delta=delta),
        lambda: check_confidence(confidence),
        *(lambda r=r: _check_guesses(r, m) for r in numbers),
    )
    order = np.argsort(scores, kind="stable")
    tried = []
    for r in numbers:
        low, high = order[: r // 2], order[m - (r - r // 2) :]
        tried.append(Guesses(m, r, int((~inside[low]).sum() + inside[high].sum())))
    level = (1 - confidence) / len(tried)
    return OneRunAudit(
        tuple(tried),
        delta,
        confidence,
        mu=max(certified_mu_of_guesses(t, level=level) for t in tried),
        plain_epsilon=max(certified_epsilon_of_guesses(t, delta=delta, level=level) for t in tried),
    )


def check_confidence(confidence: float) -> None:
    """Check that one run can prove something at this confidence.

    Raises:
        ValueError: it cannot.
    """
    if not _LEAST_CONFIDENCE <= confidence <= _MOST_CONFIDENCE:
        raise ValueError(
            f"expected {_LEAST_CONFIDENCE} <= confidence <= {_MOST_CONFIDENCE}, got confidence={confidence}: one run "
            "proves next to nothing above that; for more confidence, use the step audit"
        )


def _check_guesses(r: int, m: int) -> None:
    if not 1 <= r <= m:
        raise ValueError(f"expected 1 to {m} guesses, the number of canaries, got {r}")


def certified_mu_of_guesses(tried: Guesses, *, level: float) -> float:
    """The largest mu such that a mu-GDP run allows this many correct guesses with probability ``level`` at most.

    Source: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", section 3.
    """
    return _largest_refuted(lambda mu: _refutes_gdp(tried, mu, level), _LARGEST_MU)


def _refutes_gdp(tried: Guesses, mu: float, level: float) -> bool:
    """Whether mu-GDP runs allow fewer correct guesses than these, with a probability of at least one less ``level``.

    Let p_j be the probability of j correct guesses. For a canary I drawn at random, let r_i be the probability that
    the guess on I is correct and i or more are correct in all: r_i = sum_{j >= i} p_j j/m. With the coin of I reversed,
    that guess is wrong and i - 1 or more are correct: h_(i-1) = sum_{j >= i-1} p_j (guesses - j)/m. The two cases
    differ by one record, so r_i is at most Phi(Phi^-1(h_(i-1)) + mu). Suppose that the observed
    number of correct guesses has probability ``level``. The inequalities, from the observed i downwards, give the least
    probability of smaller numbers; mu is refuted if r + h exceeds its value at i = 0, r_0 + h_0 = guesses/m.
    """
    m, guesses, correct = tried.canaries, tried.made, tried.correct
    if 2 * correct <= guesses:
        return False
    r, h = level * correct / m, level * (guesses - correct) / m
    for i in range(correct - 1, -1, -1):
        least = max(h, float(ndtr(ndtri(r) - mu)))
        if least == h:
            return False  # no constraint on smaller numbers is left
        r, h = r + i / (guesses - i) * (least - h), least
        if r + h > guesses / m:
            return True
    return False


def certified_epsilon_of_guesses(tried: Guesses, *, delta: float, level: float) -> float:
    """The largest epsilon such that (epsilon, delta)-DP allows so many correct guesses with probability ``level``.

    Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2.
    """
    return _largest_refuted(lambda epsilon: chance_of_guesses(tried, epsilon, delta) < level, _LARGEST_EPSILON)


def chance_of_guesses(tried: Guesses, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that an (epsilon, delta)-DP run allows this many correct guesses."""
    rate = 1 / (1 + math.exp(-epsilon))
    v, r = tried.correct, tried.made
    chance = float(binom.sf(v - 1, r, rate))
    if v == 0:
        return 1.0
    i = np.arange(1, v + 1)
    below = (binom.cdf(v - 1, r, rate) - binom.cdf(v - 1 - i, r, rate)) / i
    return min(1.0, chance + 2 * tried.canaries * delta * float(below.max()))


def _largest_refuted(refuted: Callable[[float], bool], largest: float) -> float:
    """The largest refuted value up to ``largest``, by bisection and rounded downwards; 0 if none is."""
    if not refuted(1e-6):
        return 0.0
    low, high = 1e-6, largest
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class DataWithCanaries:
    """A data set that contains some of the canaries, all canaries, and which of them it contains, (canaries,)."""

    data: DataSet
    canaries: Split
    inside: np.ndarray


def with_canaries(data: DataSet, count: int) -> DataWithCanaries:
    """Give ``count`` training records a wrong class at random, and keep each of them with probability one half.

    Raises:
        ValueError: there are fewer records, or only one class.
    """
    checks.count(canaries=count)
    inputs, targets = data.train.inputs, data.train.targets
    if count > len(targets) or data.classes < 2:
        raise ValueError(
            f"{data.name} does not have {count} records and a second class to give them; ask for fewer canaries"
        )
    random = np.random.default_rng()
    chosen = random.permutation(len(targets))[:count]
    wrong = (targets[chosen] + random.integers(1, data.classes, count)) % data.classes
    inside = random.random(count) < 0.5
    changed = targets.copy()
    changed[chosen] = wrong
    kept = np.ones(len(targets), dtype=bool)
    kept[chosen[~inside]] = False
    return DataWithCanaries(
        replace(data, train=Split(inputs[kept], changed[kept])), Split(inputs[chosen], wrong), inside
    )


def audit_one_run(
    trained: Trainer,
    data: DataSet,
    *,
    canaries: int,
    delta: float,
    confidence: float = 0.95,
    on_step: Watch = lambda run, point: None,
) -> OneRunAudit:
    """Train once with mislabelled canaries, and guess from the model alone which canaries were in the data set.

    The lower bound is that of a black-box attack: it finds large leaks, and a small bound does not show that the
    guarantee is tight.

    Args:
        trained: trains a model on a data set.
        data: the records, some of which become canaries.
        canaries: number of canaries.
        delta: of the guarantee.
        confidence: 0.95 to 0.999.
        on_step: called after each step of the run.

    Raises:
        ValueError: a number outside its domain.
    """
    made = with_canaries(data, canaries)
    model = trained(made.data, on_step)
    return audit_guesses(confidences_of(model, made.canaries), made.inside, delta=delta, confidence=confidence)
