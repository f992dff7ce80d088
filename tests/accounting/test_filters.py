"""Costs that hold whatever was chosen after looking: the filter, the odometer, and which ledgers need them."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from noisette import Ledger, PldAccountant, noise_multiplier_for
from noisette.accounting import BallsInBinsGaussian, DpAmount, Events, Gaussian, PoissonGaussian, ZcdpAmount
from noisette.accounting.budget import PrivacyBudget, RunParameters
from noisette.accounting.events import Declaration
from noisette.accounting.filters import RenyiFilter, RenyiOdometer, all_events
from noisette.accounting.interface import Accountant
from noisette.accounting.ledger import RecordedRun
from noisette.errors import PrivacyError, UnsupportedEventError

EPSILON, DELTA = 3.0, 1e-5
RATES = (1.0, 0.1, 1e-3, 1e-4, 1e-5)
Z = np.linspace(-14, 14, 100_001)
WEIGHT = np.exp(-Z * Z / 2) / np.exp(-Z * Z / 2).sum()


def profile(rate: float, noise: float, epsilons: np.ndarray) -> np.ndarray:
    """Delta of one Gaussian release over a Poisson batch at each epsilon, for a record that is removed."""
    m = 1 / noise
    if rate == 1:
        return ndtr(-epsilons / m + m / 2) - np.exp(epsilons) * ndtr(-epsilons / m - m / 2)
    t = np.expm1(epsilons) + rate
    u = np.where(t > 0, (np.log(np.where(t > 0, t, 1) / rate) + m * m / 2) / m, -np.inf)
    inner = (1 - rate) * ndtr(-u) + rate * ndtr(m - u) - np.exp(epsilons) * ndtr(-u)
    return np.where(t > 0, inner, -np.expm1(epsilons))


def runs_to_choose(
    share: float, accountant: Accountant | None, epsilon: float, delta: float
) -> tuple[float, list[float]]:
    """The noise of a Gaussian release that takes a share of epsilon, and those of five runs that may follow it."""
    first = noise_multiplier_for(epsilon=epsilon * share, delta=delta, sampling_rate=1.0, steps=1)
    given = {"epsilon": epsilon, "delta": delta, "steps": 1, "accountant": accountant}
    prior = {Gaussian(first): 1}
    return first, [noise_multiplier_for(sampling_rate=rate, prior_events=prior, **given) for rate in RATES]


def chosen_delta(share: float, accountant: Accountant | None) -> tuple[list[float], float]:
    """Delta of a Gaussian release followed by one of five: of each of them alone, and of the best for each outcome.

    It is the mean, over outcomes of the first, of the second's delta at what the privacy loss has left of epsilon.
    """
    first, noises = runs_to_choose(share, accountant, EPSILON, DELTA)
    left = EPSILON - 1 / first**2 / 2 - Z / first
    deltas = np.stack([profile(rate, noise, left) for rate, noise in zip(RATES, noises, strict=True)])
    return [float(WEIGHT @ each) for each in deltas], float(WEIGHT @ deltas.max(0))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_second_run_chosen_by_the_first_stays_within_delta_by_the_filter(share):
    alone, chosen = chosen_delta(share, None)
    assert max(alone) <= chosen <= DELTA
    assert chosen >= 0.02 * DELTA, "the bound is not far away"


def test_composition_alone_does_not_bound_a_second_run_chosen_by_the_first():
    alone, chosen = chosen_delta(0.5, PldAccountant())
    assert max(alone) <= DELTA * 1.001
    assert chosen >= 1.5 * DELTA, "the defect that the filter is for"


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-5), (8.0, 1e-3), (50.0, 1e-2)])
def test_orders_are_a_function_of_the_budget_and_the_filter_costs_little(epsilon, delta):
    spent = RenyiFilter(epsilon, delta)
    assert (spent.orders, len(spent.orders)) == (RenyiFilter(epsilon, delta).orders, 3)
    assert min(spent.orders) >= 1.1
    noise = noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=1)
    by_filter = noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=1, accountant=spent)
    assert noise < by_filter < 1.25 * noise


MIXED: list[Events] = [
    {Gaussian(5.0): 3},
    {PoissonGaussian(0.01, 1.1): 1000},
    {PoissonGaussian(0.1, 3.0): 50, Gaussian(10.0): 2, ZcdpAmount(0.01): 1},
    {PoissonGaussian(1e-3, 1.2): 10_000, DpAmount(0.2): 1},
]


@pytest.mark.parametrize("events", MIXED, ids=str)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_neither_is_below_the_price_of_composition(events, delta):
    price = PldAccountant().compose(events).epsilon(delta=delta)
    for adaptive in (RenyiOdometer(), RenyiFilter(price, delta)):
        curve = adaptive.compose(events)
        epsilon = curve.epsilon(delta=delta)
        assert price <= epsilon < 3 * price + 0.5
        assert curve.delta(epsilon=epsilon) == pytest.approx(delta, rel=1e-6)


def test_conversion_of_one_order_is_that_of_the_library():
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    limit = RenyiFilter(2.0, 1e-5)
    curve = limit.compose({Gaussian(4.0): 4})
    expected = [
        compute_epsilon([order], [divergence], 1e-5 * share)[0]
        for order, divergence, share in zip(limit.orders, curve.divergences, (0.8, 0.1, 0.1), strict=True)
    ]
    assert curve.epsilon(delta=1e-5) == pytest.approx(min(expected), rel=1e-12)


def test_events_without_divergences_are_refused_with_the_way_out():
    with pytest.raises(UnsupportedEventError, match="Declare everything together"):
        RenyiOdometer().compose({Gaussian(4.0): 1, DpAmount(0.1, 1e-9): 1})


def test_a_pass_of_balls_in_bins_costs_at_most_a_release_over_all_records():
    """A pass that was begun counts as a whole; the distribution of its loss, which composes, costs less."""
    passes, releases = {BallsInBinsGaussian(10, 2.0): 11}, {Gaussian(2.0): 2}
    bound = RenyiOdometer().compose(passes).epsilon(delta=1e-5)
    assert bound == pytest.approx(RenyiOdometer().compose(releases).epsilon(delta=1e-5), rel=1e-3)
    assert PldAccountant().compose({BallsInBinsGaussian(10, 2.0): 20}).epsilon(delta=1e-5) < bound / 2


# Declarations of a ledger


STEP = PoissonGaussian(0.01, 2.0)


def reserve(ledger: Ledger, steps: int, run: RecordedRun) -> None:
    ledger.reserve(STEP, steps, run=run)
    for _ in range(steps):
        ledger.commit(STEP, run=run)


def test_each_charge_and_each_run_is_a_declaration(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for _ in range(2):
            ledger.charge(Gaussian(9.0))
        ledger.charge(Gaussian(9.0), 5)
        reserve(ledger, 3, RecordedRun("one", planned=40))
    with Ledger(path) as ledger:  # resumed
        reserve(ledger, 2, RecordedRun("one", planned=40))
        reserve(ledger, 1, RecordedRun("two", planned=1))
        ledger.shorten()
        here = ledger.declarations
    for declarations in (here, Ledger.read(path).declarations):
        of_charges = [{Gaussian(9.0): times} for times in (1, 1, 5)]
        assert [each.events for each in declarations] == [*of_charges, {STEP: 5}, {STEP: 1}]
        assert declarations[3].planned == {STEP: 40}


def test_releases_of_one_name_are_one_declaration(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.charge(Gaussian(9.0), declaration="both")
        reserve(ledger, 3, RecordedRun(planned=40, declaration="both"))
        reserve(ledger, 2, RecordedRun(planned=10, declaration="both"))
        mirrored = Ledger.mirror(ledger.dataset, ledger.totals).declarations
    expected = [Declaration(("both",), {Gaussian(9.0): 1, STEP: 5}, {Gaussian(9.0): 1, STEP: 50})]
    assert mirrored == Ledger.read(path).declarations == expected


def test_a_run_that_gave_all_its_steps_back_is_no_declaration():
    ledger, run = Ledger(), RecordedRun()
    ledger.reserve(STEP, 3, run=run)
    ledger.release(run=run)
    assert ledger.declarations == []


# The budget of a run


def spending(ledger: Ledger, *, steps: int, epsilon: float | None = EPSILON) -> tuple[PrivacyBudget, RunParameters]:
    terms = RunParameters(STEP, 100.0, steps, delta=DELTA, epsilon=epsilon)
    return PrivacyBudget(terms, PldAccountant(), ledger), terms


def test_one_run_costs_what_its_accountant_says_however_often_it_is_resumed():
    ledger = Ledger()
    budget, terms = spending(ledger, steps=1000)
    for _ in range(2):
        reserve(ledger, 100, terms.recorded)
    assert budget.epsilon(ledger.paid, delta=DELTA) == PldAccountant().compose({STEP: 200}).epsilon(delta=DELTA)
    budget.check_budget(800)


def test_beside_a_charge_epsilon_is_the_odometer_s_or_the_budget():
    ledger = Ledger()
    ledger.charge(Gaussian(20.0))
    free, _ = spending(ledger, steps=1000, epsilon=None)
    bound, terms = spending(ledger, steps=1000)
    reserve(ledger, 1000, terms.recorded)
    together = PldAccountant().compose(ledger.events).epsilon(delta=DELTA)
    odometer = RenyiOdometer().compose(all_events(ledger.declarations)).epsilon(delta=DELTA)
    assert together < free.epsilon(ledger.paid, delta=DELTA) == pytest.approx(odometer, rel=1e-9)
    assert bound.epsilon(ledger.paid, delta=DELTA) == pytest.approx(min(odometer, EPSILON), rel=1e-9)


def test_a_budget_beside_a_charge_is_kept_by_the_filter():
    """As many steps as composition allows are too many, and as many as the filter allows are not."""
    ledger = Ledger()
    ledger.charge(Gaussian(3.0))

    def most(accountant: Accountant) -> int:
        low, high = 1, 100_000
        while high - low > 1:
            middle = (low + high) // 2
            price = accountant.compose({Gaussian(3.0): 1, STEP: middle}).epsilon(delta=DELTA)
            low, high = (middle, high) if price <= EPSILON else (low, middle)
        return low

    composed, filtered = most(PldAccountant()), most(RenyiFilter(EPSILON, DELTA))
    assert filtered < composed
    spending(ledger, steps=filtered)[0].check_budget(filtered)
    with pytest.raises(PrivacyError, match=r"by the Rényi filter, for 2 declarations, beyond the budget of 3"):
        spending(ledger, steps=filtered + 1)[0].check_budget(filtered + 1)


def test_nothing_follows_a_run_that_was_stopped_before_it_spent_the_whole_budget():
    """Else one who looks at half a run would choose between two budgets, its rest and that of the filter."""
    noise = noise_multiplier_for(epsilon=EPSILON, delta=DELTA, sampling_rate=0.01, steps=1000)
    first, ledger = PoissonGaussian(0.01, noise), Ledger()
    run = RecordedRun(planned=1000)
    ledger.reserve(first, 10, run=run)
    budget, _ = spending(ledger, steps=1)
    with pytest.raises(PrivacyError, match=r"a declaration of 1000 × .* which the other\s+releases in the ledger need"):
        budget.check_budget(1)
    of_first = RunParameters(first, 100.0, 1000, delta=DELTA, epsilon=EPSILON, run=run.id)
    PrivacyBudget(of_first, PldAccountant(), ledger).check_budget(990)
    assert not math.isinf(budget.epsilon(ledger.paid, delta=DELTA))


def simulated_delta(accountant: Accountant | None, epsilon: float, delta: float, trials: int) -> tuple[float, float]:
    """Mean and standard error, over two releases that are drawn, of what they add to delta: 1 - exp(epsilon - loss).

    The second run is the one of five whose delta is largest at what the first one's loss has left of epsilon.
    """
    random = np.random.default_rng(20260501)
    first, noises = runs_to_choose(0.5, accountant, epsilon, delta)
    loss = (random.standard_normal(trials) + 0.5 / first) / first
    by_run = np.stack([profile(rate, noise, epsilon - loss) for rate, noise in zip(RATES, noises, strict=True)])
    chosen = by_run.argmax(0)
    rate, m = np.array(RATES)[chosen], 1 / np.array(noises)[chosen]
    output = random.standard_normal(trials) + m * (random.random(trials) < rate)
    with np.errstate(divide="ignore"):  # at rate 1
        total = loss + np.logaddexp(np.log1p(-rate), np.log(rate) + m * output - m * m / 2)
    added = np.maximum(0, -np.expm1(epsilon - total))
    return float(added.mean()), float(added.std() / math.sqrt(trials))


def test_a_simulation_of_two_runs_agrees() -> None:
    by_filter, error = simulated_delta(None, 1.0, 0.01, 400_000)
    assert by_filter + 4 * error < 0.01
    by_composition, error = simulated_delta(PldAccountant(), 1.0, 0.01, 400_000)
    assert by_composition - 4 * error > 0.0115, "the defect that the filter is for"
