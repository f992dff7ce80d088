"""Correct guesses about one run: the bounds that they prove hold, and are those of the theorems."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from noisette.audit import audit_guesses, epsilon_of
from noisette.audit.membership import Guesses, certified_mu_of_guesses, chance_of_guesses


def ideal(random: np.random.Generator, mu: float, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the best attacker on a run that is exactly mu-GDP for each canary."""
    inside = random.random(m) < 0.5
    return random.normal(size=m) + mu * inside, inside


# Median bound at 95 % of ten runs, between these, at delta 1e-5: any mechanism, and a Gaussian one.
POWER = {
    (0.268, 10_000): ((0.3, 0.7), (0.4, 0.8)),
    (0.925, 1_000): ((0.9, 1.9), (1.2, 2.6)),
    (0.925, 10_000): ((1.7, 2.4), (2.2, 3.0)),
    (1.666, 10_000): ((3.0, 4.1), (4.3, 5.9)),
}


@pytest.mark.parametrize(("setting", "expected"), POWER.items())
def test_power_is_in_the_expected_range(setting: tuple[float, int], expected) -> None:
    random = np.random.default_rng(1)
    audits = [audit_guesses(*ideal(random, *setting), delta=1e-5) for _ in range(10)]
    found = np.median([(a.plain_epsilon, a.epsilon) for a in audits], axis=0)
    for value, (least, most) in zip(found, expected, strict=True):
        assert least < value < most
    assert found[0] < found[1] < epsilon_of(setting[0], delta=1e-5)


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_a_true_guarantee_is_rarely_refuted(mu: float) -> None:
    """At 95 %: 3 of 60 runs are expected at most; the test allows six deviations more."""
    random = np.random.default_rng(2)
    audits = [audit_guesses(*ideal(random, mu, 300), delta=1e-5) for _ in range(60)]
    limit = 3 + 6 * math.sqrt(3)
    assert sum(audit.mu > mu for audit in audits) <= limit
    assert sum(audit.plain_epsilon > epsilon_of(mu, delta=1e-5) for audit in audits) <= limit


@pytest.mark.parametrize(("v", "r", "m"), [(0, 5, 5), (3, 5, 9), (5, 5, 5), (11, 12, 30)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-3), (3.0, 0.2), (2.0, 1 - 1e-9)])
def test_chance_of_guesses_is_that_of_the_theorem(v: int, r: int, m: int, epsilon: float, delta: float) -> None:
    """In exact fractions, sum by sum."""
    rate = Fraction(1 / (1 + math.exp(-epsilon)))
    law = [math.comb(r, k) * rate**k * (1 - rate) ** (r - k) for k in range(r + 1)]
    slope = max((sum(law[v - i : v]) / i for i in range(1, v + 1)), default=Fraction(0))
    exact = min(1.0, float(sum(law[v:]) + 2 * m * Fraction(delta) * slope))
    assert chance_of_guesses(Guesses(m, r, v), epsilon, delta) == pytest.approx(exact, rel=1e-9)


def largest_chance(m: int, guesses: int, right: int, mu: float) -> float:
    """The largest probability that mu-GDP allows for this many correct guesses, by linear programming.

    The trade-off, a concave function, is replaced by many of its tangents, all of which lie above it.
    """
    j = np.arange(guesses + 1)
    at = np.concatenate([np.logspace(-14, -1, 400), np.linspace(0.1, 1, 200, endpoint=False)])
    value, slope = norm.cdf(norm.ppf(at) + mu), norm.pdf(norm.ppf(at) + mu) / norm.pdf(norm.ppf(at))
    rows, limits = [], []
    for i in range(1, guesses + 1):
        r, h = np.where(j >= i, j / m, 0), np.where(j >= i - 1, (guesses - j) / m, 0)
        rows.append(r - np.outer(slope, h))
        limits.append(value - slope * at)
    best = linprog(
        -(j >= right).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1],
        method="highs",
    )
    assert best.success
    return -best.fun


@pytest.mark.parametrize(("m", "guesses", "right"), [(10, 10, 9), (20, 20, 16), (30, 12, 12), (40, 24, 20)])
def test_mu_of_guesses_agrees_with_linear_programming(m: int, guesses: int, right: int) -> None:
    level = 0.05
    mu = certified_mu_of_guesses(Guesses(m, guesses, right), level=level)
    assert mu > 0
    assert largest_chance(m, guesses, right, 0.99 * mu) < level < largest_chance(m, guesses, right, 1.02 * mu)


def test_few_canaries_and_uninformative_scores_prove_nothing() -> None:
    for m in (1, 2, 3):
        audit = audit_guesses(np.arange(m, dtype=float), np.arange(m) >= m / 2, delta=1e-5)
        assert audit.mu == audit.epsilon == audit.plain_epsilon == 0
    tied = audit_guesses(np.zeros(2_000), np.resize([True, False], 2_000), delta=1e-5)
    assert tied.mu == tied.plain_epsilon == 0
    wrong = audit_guesses(-np.arange(2_000.0), np.arange(2_000) >= 1_000, delta=1e-5)
    assert wrong.mu == wrong.plain_epsilon == 0, "guesses that are all wrong"


def test_guesses_are_counted() -> None:
    scores, inside = np.array([5.0, 1.0, 4.0, 2.0, 3.0]), np.array([True, False, False, True, True])
    audit = audit_guesses(scores, inside, delta=1e-5, guesses=[2, 3, 5])
    assert [(t.made, t.correct) for t in audit.tried] == [(2, 2), (3, 2), (5, 3)]


def test_a_higher_confidence_gives_a_smaller_bound() -> None:
    scores, inside = ideal(np.random.default_rng(3), 1.0, 5_000)
    found = [audit_guesses(scores, inside, delta=1e-5, confidence=c) for c in (0.95, 0.99, 0.999)]
    assert found[0].mu > found[1].mu > found[2].mu > 0
    assert found[0].plain_epsilon > found[1].plain_epsilon > found[2].plain_epsilon > 0


def test_arguments_outside_their_domain_are_refused() -> None:
    scores, inside = ideal(np.random.default_rng(4), 1.0, 100)
    with pytest.raises(ValueError, match=r"0\.95 <= confidence <= 0\.999, got confidence=0\.9999999: one run proves"):
        audit_guesses(scores, inside, delta=1e-5, confidence=0.9999999)
    with pytest.raises(ValueError, match=r"delta < 1.*expected 1 to 100 guesses"):
        audit_guesses(scores, inside, delta=1.0, guesses=[101])
    with pytest.raises(ValueError, match="a score and a coin for each canary"):
        audit_guesses(scores, inside[:50], delta=1e-5)
