"""Simulated privacy costs: their limits hold for costs in closed form, and costs stated too small are refuted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from noisette import PldAccountant
from noisette.accounting import GroupPrivacy, Laplace, UserLevel
from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)
from noisette.audit import Verdict, audit_cost, certificate


def delta_of_gaussian(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism whose means are ``mu`` deviations apart (Balle and Wang 2018, theorem 8)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def delta_of_batch(rate: float, sigma: float, epsilon: float) -> float:
    """Delta of one Poisson batch, when a record is removed: the rate times that of the Gaussian at a larger epsilon."""
    return rate * delta_of_gaussian(1 / sigma, math.log(1 + math.expm1(epsilon) / rate))


EXACT: dict[str, tuple[dict[Event, int], float, float]] = {
    "Gaussian releases of two kinds": (
        {Gaussian(4.0): 9, PoissonGaussian(1.0, 2.0): 2},
        4.0,
        delta_of_gaussian((9 / 16 + 2 / 4) ** 0.5, 4.0),
    ),
    "a group of six": ({GroupPrivacy(Gaussian(12.0), 6): 4}, 6.0, delta_of_gaussian(1.0, 6.0)),
    "one Poisson batch": ({PoissonGaussian(0.02, 0.8): 1}, 1.0, delta_of_batch(0.02, 0.8, 1.0)),
    "one round of bands": ({BandedGaussian(0.01, 0.8, 5): 3}, 1.0, delta_of_batch(0.05, 0.8, 1.0)),
}


@pytest.mark.parametrize(("events", "epsilon", "delta"), EXACT.values(), ids=EXACT)
def test_limits_enclose_costs_in_closed_form(events: dict[Event, int], epsilon: float, delta: float) -> None:
    audit = audit_cost(events, epsilon=epsilon, delta=delta)
    assert 0.4 * delta < audit.least <= delta <= audit.most < 2 * delta
    assert audit.verdict is Verdict.CONSISTENT
    assert audit_cost(events, epsilon=epsilon, delta=0.3 * delta).verdict is Verdict.VIOLATION


def test_the_lower_limit_exceeds_the_true_delta_at_the_stated_rate() -> None:
    """At one in ten for both directions, which are equal here; the binomial tail beyond 35 of 100 is 1e-10."""
    truth = delta_of_gaussian(1.0, 3.0)
    alarms = [
        audit_cost({Gaussian(1.0): 1}, epsilon=3.0, delta=truth, samples=500, false_alarm=0.1).least > truth
        for _ in range(100)
    ]
    assert sum(alarms) < 36


# What was released, and releases whose cost is stated for it: a factor, a parameter or a kind of batches is wrong.
WRONG: dict[str, tuple[dict[Event, int], dict[Event, int]]] = {
    "a smaller sampling rate": ({PoissonGaussian(0.01, 1.3): 6000}, {PoissonGaussian(0.0097, 1.3): 6000}),
    "more noise": ({PoissonGaussian(0.01, 1.3): 6000}, {PoissonGaussian(0.01, 1.32): 6000}),
    "fewer steps": ({PoissonGaussian(0.1, 1.0): 100}, {PoissonGaussian(0.1, 1.0): 95}),
    "a part is forgotten": ({PoissonGaussian(0.1, 1.0): 100, Gaussian(3.0): 1}, {PoissonGaussian(0.1, 1.0): 100}),
    "full batches that gain a record": (
        {TruncatedPoissonGaussian(0.01, 1.1, 100, 10_000): 500},
        {PoissonGaussian(0.01, 1.1): 500},
    ),
    "each step of a band by itself": ({BandedGaussian(0.01, 1.1, 8): 800}, {PoissonGaussian(0.01, 1.1): 800}),
    "a user with one record": (
        {UserLevel(PoissonGaussian(0.01, 4.0), 3): 1000},
        {UserLevel(PoissonGaussian(0.01, 4.0), 1): 1000},
    ),
    "a replaced record that is added": ({FixedSizeGaussian(100, 1000, 4.0): 100}, {PoissonGaussian(0.1, 4.0): 100}),
}


LONG = ("full batches that gain a record", "a user with one record", "more noise")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in LONG else []) for case in WRONG])
def test_a_cost_that_is_too_small_is_refuted_and_the_right_one_is_not(case: str) -> None:
    released, stated = WRONG[case]
    right, wrong = (PldAccountant().compose(events).epsilon(delta=1e-6) for events in (released, stated))
    assert audit_cost(released, epsilon=right, delta=1e-6).findings == ()
    [finding] = audit_cost(released, epsilon=wrong, delta=1e-6).findings
    assert finding.startswith(f"at epsilon={wrong:.4g} delta is ")


def test_a_record_that_is_added_is_simulated_too() -> None:
    """Its delta is an integral, and never the larger one of a single batch."""
    u, epsilon = np.linspace(-12, 12, 100_001), 0.3
    without, inside = norm.pdf(u), 0.6 * norm.pdf(u - 1) + 0.4 * norm.pdf(u)
    delta = float(np.maximum(without - math.exp(epsilon) * inside, 0).sum() * (u[1] - u[0]))
    losses = certificate._losses(PoissonGaussian(0.6, 1.0), 1, removed=False)
    assert losses is not None
    least, most = certificate._limits([losses], epsilon, 20_000, 1e-9, np.random.default_rng())
    assert 0.8 * delta < least < delta < most < 1.25 * delta


def test_kinds_that_are_not_simulated_are_named() -> None:
    released = {Laplace(2.0): 3, BallsInBinsGaussian(3, 2.0): 3, Gaussian(1.0): 1}
    audit = audit_cost(released, epsilon=1.0, delta=1e-5)
    assert audit.left_out == ("Laplace", "balls-in-bins Gaussian")
    assert audit.verdict is Verdict.VIOLATION, "the Gaussian release alone costs more"
    assert audit_cost({Laplace(2.0): 3}, epsilon=0.0, delta=1e-5).least == 0


@pytest.mark.parametrize("sigma", [1e-4, 1e4])
@pytest.mark.parametrize("kind", [Gaussian, lambda s: PoissonGaussian(1e-6, s)])
def test_the_smallest_and_the_largest_noise_are_simulated(kind, sigma: float) -> None:
    for epsilon in (0.0, 1.0, 1e4):
        audit = audit_cost({kind(sigma): 3}, epsilon=epsilon, delta=1e-9, samples=100)
        assert 0 <= audit.least <= audit.most <= 1
