"""What right guesses about many canaries of one single run prove about its privacy.

Each of m canaries takes part with probability one half. Whoever sees the run guesses "in" for the highest scores and
"out" for the lowest, and abstains between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from noisette._internal import checks
from noisette.audit.certificate import epsilon_of

_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.95, 0.999
_LARGEST_MU, _LARGEST_EPSILON = 50.0, 100.0
_TRIED_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Tried:
    """So many guesses about so many canaries, and how many of them were right."""

    canaries: int
    guesses: int
    right: int


@dataclass(frozen=True)
class OneRunAudit:
    """What the guesses about one run prove at this confidence, shared out among all numbers of guesses that were tried.

    ``mu`` is certified for a mechanism as leaky as a Gaussian one, ``epsilon`` is its price at ``delta``, and
    ``plain_epsilon`` holds for any (epsilon, delta)-DP mechanism.
    """

    tried: tuple[Tried, ...]
    delta: float
    confidence: float
    mu: float
    plain_epsilon: float

    @property
    def epsilon(self) -> float:
        """What a Gaussian mechanism of the certified mu costs at delta."""
        return epsilon_of(self.mu, delta=self.delta)

    def facts(self) -> dict[str, Any]:
        """All numbers, as plain values."""
        return {
            "delta": self.delta,
            "confidence": self.confidence,
            "tried": [{"canaries": t.canaries, "guesses": t.guesses, "right": t.right} for t in self.tried],
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
    """Guess from scores who took part, and certify what the right guesses prove.

    Args:
        scores: one for each canary, high where it seems to have taken part, (m,).
        inside: whether it did, by fair coins, (m,).
        delta: of the claim.
        guesses: numbers of guesses to try, chosen without these scores; one to a hundred percent of m unless given.
        confidence: 0.95 to 0.999. Beyond that one run proves too little to be worth a number.

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
        tried.append(Tried(m, r, int((~inside[low]).sum() + inside[high].sum())))
    level = (1 - confidence) / len(tried)
    return OneRunAudit(
        tuple(tried),
        delta,
        confidence,
        mu=max(certified_mu_of_guesses(t, level=level) for t in tried),
        plain_epsilon=max(certified_epsilon_of_guesses(t, delta=delta, level=level) for t in tried),
    )


def check_confidence(confidence: float) -> None:
    """One run can say something at this confidence.

    Raises:
        ValueError: it cannot, or that is no confidence.
    """
    if not _LEAST_CONFIDENCE <= confidence <= _MOST_CONFIDENCE:
        raise ValueError(
            f"expected {_LEAST_CONFIDENCE} <= confidence <= {_MOST_CONFIDENCE}, got confidence={confidence}: one run "
            "proves next to nothing beyond; for more, play the step audit"
        )


def _check_guesses(r: int, m: int) -> None:
    if not 1 <= r <= m:
        raise ValueError(f"expected 1 to {m} guesses, as there are canaries, got {r}")


def certified_mu_of_guesses(tried: Tried, *, level: float) -> float:
    """The largest mu for which no mu-GDP run lets so many guesses be right, but with probability ``level``.

    Source: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", section 3.
    """
    return _largest_refuted(lambda mu: _refutes_gdp(tried, mu, level), _LARGEST_MU)


def _refutes_gdp(tried: Tried, mu: float, level: float) -> bool:
    """Whether mu-GDP runs let fewer guesses be right than these, with a probability of at least one less ``level``.

    Let p_j be the probability of j right guesses. Canary I, drawn at random, is guessed right and i or more are right
    in all: probability r_i = sum_{j >= i} p_j j/m. With the coin of I turned over that guess is wrong, and i - 1 or
    more are right: h_(i-1) = sum_{j >= i-1} p_j (guesses - j)/m. The two worlds differ by one record, so r_i is at most
    Phi(Phi^-1(h_(i-1)) + mu). Were all of ``level`` at the number that was right, how much probability must lie below
    it? Too much is a contradiction, since r_0 + h_0 = guesses/m.
    """
    m, guesses, right = tried.canaries, tried.guesses, tried.right
    if 2 * right <= guesses:
        return False
    r, h = level * right / m, level * (guesses - right) / m
    for i in range(right - 1, -1, -1):
        least = max(h, float(ndtr(ndtri(r) - mu)))
        if least == h:
            return False  # nothing more is asked for further down
        r, h = r + i / (guesses - i) * (least - h), least
        if r + h > guesses / m:
            return True
    return False


def certified_epsilon_of_guesses(tried: Tried, *, delta: float, level: float) -> float:
    """The largest epsilon for which no (epsilon, delta)-DP run lets so many be right, but with probability ``level``.

    Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2.
    """
    return _largest_refuted(lambda epsilon: chance_of_guesses(tried, epsilon, delta) < level, _LARGEST_EPSILON)


def chance_of_guesses(tried: Tried, epsilon: float, delta: float) -> float:
    """Bound on the probability that an (epsilon, delta)-DP run lets so many guesses be right."""
    rate = 1 / (1 + math.exp(-epsilon))
    v, r = tried.right, tried.guesses
    chance = float(binom.sf(v - 1, r, rate))
    if v == 0:
        return 1.0
    i = np.arange(1, v + 1)
    below = (binom.cdf(v - 1, r, rate) - binom.cdf(v - 1 - i, r, rate)) / i
    return min(1.0, chance + 2 * tried.canaries * delta * float(below.max()))


def _largest_refuted(refuted: Callable[[float], bool], largest: float) -> float:
    """The upper end of what is refuted, from below; 0 if nothing is."""
    if not refuted(1e-6):
        return 0.0
    low, high = 1e-6, largest
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
