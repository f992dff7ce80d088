"""Prices against the independent oracle, and the oracle against closed forms, high precision and simulation."""

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from support.exact_privacy import ExchangedLoss, LaplaceLoss, Oracle, ReplacedLoss, SampledLoss, Truth
from support.grid_privacy import Few, epsilon_of, epsilon_on_grids, releases_of

from experiments.prices import HARD, SURE, Plan, compared, is_low, rows
from noisette import GdpAccountant, PldAccountant
from noisette.accounting import TruncatedPoissonGaussian
from noisette.accounting.events import FixedSizeGaussian, Gaussian, GroupPrivacy, PoissonGaussian, event_of

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "prices.jsonl"
ROWS = [row for row in map(json.loads, RESULTS.read_text().splitlines()) if row["error"] <= SURE]


def plan_of(row: dict[str, Any]) -> Plan:
    return Plan(row["kind"], {event_of(facts): times for facts, times in row["events"]}, row["delta"])


def test_no_price_is_below_the_known_truth():
    excesses, of_each_kind = [], {row["kind"]: row for row in reversed(ROWS)}
    for row in (*of_each_kind.values(), *ROWS[7::24]):
        plan = plan_of(row)
        price = PldAccountant().compose(plan.events).epsilon(delta=plan.delta)
        assert not is_low(row | {"price": price}), plan
        is_full_often = any(isinstance(event, TruncatedPoissonGaussian) for event in plan.events)
        assert price < row["truth"] * (1.5 if is_full_often else 1.2), plan
        excesses.append(price / row["truth"] - 1)
    assert np.median(excesses) < 1e-4


def test_the_oracles_find_the_same_truth_again():
    for row in ROWS[:2]:
        plan = plan_of(row)
        assert epsilon_on_grids(plan.events, plan.delta)[0] == pytest.approx(row["truth"], rel=1e-6)
        assert Oracle(plan.events).epsilon(plan.delta)[0] == pytest.approx(row["truth"], rel=1e-6)


@pytest.mark.slow
def test_prices_of_a_hundred_plans_are_not_below_the_truth():
    found = [row for row in rows(100, 21, "pld") if row["error"] <= SURE]
    assert not [row for row in found if is_low(row)]


@pytest.mark.parametrize("epsilon", [0.01, 2.0])
def test_the_grids_agree_with_the_closed_form_of_one_release(epsilon):
    """Also where only rare losses are as large, and rounding hides their probability behind that of all others."""
    for event in (PoissonGaussian(1.5e-5, 0.7), PoissonGaussian(0.2, 1.1), FixedSizeGaussian(3, 1000, 1.5)):
        closed = Truth({event: 1}, added=False)
        delta = closed.delta(epsilon)
        few = Few(releases_of(closed.losses, added=False), delta)
        assert epsilon_of(few, delta)[0] == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("rate", "shift"), [(0.3, 1.2), (0.01, 0.8)])
def test_the_grids_agree_with_an_integral_for_an_exchanged_record(rate, shift):
    loss = ExchangedLoss(rate, shift)

    def above(z: float) -> float:
        p, q = (math.exp(-(z**2) / 2) * (1 - rate + rate * math.exp(s * z - shift**2 / 2)) for s in (shift, -shift))
        return max(0.0, p - math.exp(0.2) * q) / math.sqrt(2 * math.pi)

    delta = quad(above, -12, 14, limit=500, epsabs=1e-16, points=[0, 1, 2, 4])[0]
    few = Few(releases_of([(loss, 1)], added=False), delta)
    assert epsilon_of(few, delta)[0] == pytest.approx(0.2, rel=1e-6)


def test_a_low_price_is_found():
    event, times, delta = HARD[0]
    row = compared(Plan("little noise", {event: times}, delta), "pld")
    assert row["truth"] == pytest.approx(6.5502561, rel=1e-7)
    assert not is_low(row)
    assert is_low(row | {"price": 6.5477})


@pytest.mark.parametrize(("noise", "times", "delta"), [(1.0, 1, 1e-5), (10.0, 100, 1e-15), (0.5, 7, 1e-9)])
def test_the_oracle_agrees_with_the_closed_form_of_gaussians(noise, times, delta):
    exact = GdpAccountant().compose({Gaussian(noise): times}).epsilon(delta=delta)
    assert Oracle({Gaussian(noise): times}).epsilon(delta)[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("power", [0.3, -6.0, 3 + 2j, -3 - 9j])
def test_the_oracle_agrees_with_high_precision(power):
    rate, shift = 1e-3, 1.3
    with mpmath.workdps(25):

        def moment(x):
            ratio = 1 - mpmath.mpf(rate) + mpmath.mpf(rate) * mpmath.exp(shift * x - mpmath.mpf(shift) ** 2 / 2)
            return mpmath.npdf(x) * ratio**power

        exact = complex(mpmath.log(mpmath.quad(moment, mpmath.linspace(-30, 60, 46))))
    found = SampledLoss(rate, shift).log_moment(np.array([power]))[0]
    assert abs(np.exp(found - exact) - 1) < 1e-12 + 1e-10 * abs(np.imag(power))


def test_the_oracle_agrees_with_the_closed_moment_of_laplace_noise():
    e, p = 0.7, np.array([2.5 + 3j])
    exact = (np.exp((p - 1) * e) * p + np.exp(-p * e) * (p - 1)) / (2 * p - 1)
    assert LaplaceLoss(e).log_moment(p)[0] == pytest.approx(np.log(exact)[0], rel=1e-12)


LONG = pytest.param(TruncatedPoissonGaussian(0.2, 1.0, 22, 100), marks=pytest.mark.slow)


@pytest.mark.parametrize("event", [PoissonGaussian(0.3, 0.8), GroupPrivacy(PoissonGaussian(0.2, 2.0), 4), LONG])
def test_the_contour_agrees_with_the_closed_form_of_one_release(event):
    along_contour, closed = Truth({event: 1}, added=False), Truth({event: 1}, added=False)
    along_contour.single = None
    assert along_contour.delta(0.8) == pytest.approx(closed.delta(0.8), rel=2e-6)


def test_the_moment_of_a_replaced_record_follows_from_its_delta():
    """M(p) is 1 + p (p - 1) times the integral of (exp((p - 1) e) + exp(-p e)) delta(e) over e above 0."""
    loss, p = ReplacedLoss(SampledLoss(0.2, 1.3)), 2.4

    def term(e: float) -> float:
        return (math.exp((p - 1) * e) + math.exp(-p * e)) * loss.hockey_stick(e, added=False)

    found = loss.log_moment(np.array([p]))[0]
    assert math.exp(found) == pytest.approx(1 + p * (p - 1) * quad(term, 0, 12, limit=200)[0], rel=1e-6)
    assert loss.log_moment(np.array([1 - p]))[0] == pytest.approx(found, rel=1e-9)


def test_the_oracle_agrees_with_simulation():
    """Importance sampling: the moved Gaussian is drawn in every step with probability one third."""
    rate, noise, times, epsilon = 0.05, 1.0, 4, 1.0
    random, often, number = np.random.default_rng(3), 1 / 3, 400_000
    x = random.normal(size=(number, times)) + (random.random((number, times)) < often) / noise
    ratio = np.exp(x / noise - 0.5 / noise**2)
    loss = np.log1p(rate * (ratio - 1))
    weight = np.exp((loss - np.log1p(often * (ratio - 1))).sum(axis=1))
    terms = weight * np.maximum(0, -np.expm1(epsilon - loss.sum(axis=1)))
    exact = Truth({PoissonGaussian(rate, noise): times}, added=False).delta(epsilon)
    assert abs(terms.mean() - exact) < 4 * terms.std() / math.sqrt(number)
