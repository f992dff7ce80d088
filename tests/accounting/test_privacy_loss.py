"""Distributions of the privacy loss and their composition, against sums and integrals that are exact."""

import itertools
import math
import warnings

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.special import ndtr
from scipy.stats import binom

from noisette import PldAccountant, RdpAccountant, RepeatAndSelect, TruncatedPoissonGaussian, ZcdpAmount
from noisette.accounting import Laplace, PoissonGaussian, ReplacedPoissonGaussian, UserLevel, privacy_loss
from noisette.accounting.events import BallsInBinsGaussian, DiscreteGaussian, DpAmount, FixedSizeGaussian, Gaussian
from noisette.accounting.pld import Composition
from noisette.accounting.privacy_loss import LossDistribution, TruncatedCase, directions_of, ends_of_cases
from noisette.accounting.rdp import renyi_loss
from noisette.errors import UnsupportedEventError


@pytest.fixture(autouse=True)
def _distributions_are_made_anew():
    directions_of.cache_clear()
    yield
    directions_of.cache_clear()


def delta(events, epsilon):
    return PldAccountant().compose(events).delta(epsilon=epsilon)


def gaussian_delta(mu, epsilon):
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def is_tight(ours, exact, excess=1e-3):
    """Not below the exact value, and hardly above it."""
    return exact * (1 - 1e-9) <= ours <= exact * (1 + excess) + 1e-18


def discrete_gaussian(sigma):
    values = np.arange(-12 * math.ceil(sigma), 12 * math.ceil(sigma) + 1)
    masses = np.exp(-((values / sigma) ** 2) / 2)
    return values, masses / masses.sum()


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.7, 4.0])
def test_amounts_compose_as_randomised_responses(epsilon):
    """Exact: of n answers, k are the more likely one."""
    n, each, fails = 20, 0.25, 1e-7
    k = np.arange(n + 1)
    loss, exact = (2 * k - n) * each, 1 - (1 - fails) ** n
    probabilities = binom.pmf(k, n, math.exp(each) / (1 + math.exp(each)))
    exact += (1 - fails) ** n * probabilities @ np.maximum(0, 1 - np.exp(epsilon - loss))
    assert is_tight(delta({DpAmount(each, fails): n}, epsilon), exact, 2e-2)  # at 4.0 a loss is exactly epsilon


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.45])
def test_one_release_with_laplace_noise(epsilon):
    assert is_tight(delta({Laplace(2.0): 1}, epsilon), 1 - math.exp((epsilon - 0.5) / 2))
    assert PldAccountant().compose({Laplace(2.0): 1}).epsilon(delta=1e-9) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0])
@pytest.mark.parametrize("most_values", [60, 4000])
def test_counts_with_discrete_noise(sigma, most_values, monkeypatch):
    """Exact: three releases by convolution. Joined values cost hardly more, and never less."""
    monkeypatch.setattr(privacy_loss, "MOST_VALUES", most_values)
    values, masses = discrete_gaussian(sigma)
    three = np.convolve(np.convolve(masses, masses), masses)
    loss = (3 - 2 * np.arange(3 * values[0], 3 * values[-1] + 1)) / (2 * sigma**2)
    for epsilon in (0.0, 1 / sigma, 4 / sigma):
        exact = three @ np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0)))
        assert is_tight(delta({DiscreteGaussian(sigma): 3}, epsilon), exact, 2e-3 if most_values > 60 else 0.5)


def test_much_discrete_noise_is_known_by_its_divergences():
    assert delta({DiscreteGaussian(2e5): 1}, 3e-5) < 20 * gaussian_delta(5e-6, 3e-5)
    assert delta({DiscreteGaussian(2e5): 1}, 1e-5) >= gaussian_delta(5e-6, 1e-5)
    with warnings.catch_warnings():  # probabilities far out are too small for a float
        warnings.simplefilter("error")
        assert 0 < delta({DiscreteGaussian(3000.0): 1}, 0.7) < 1e-300


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 2.0), (0.9, 0.8)])
@pytest.mark.parametrize("epsilon", [0.05, 0.7])
def test_two_sampled_releases(rate, noise, epsilon):
    """Exact: the positive part of the difference of the densities, summed over a plane."""
    x = np.linspace(-9, 9 + 1 / noise, 3001)
    still = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    ratio = 1 - rate + rate * np.exp(x / noise - noise**-2 / 2)
    weight, pair = np.outer(still, still) * (x[1] - x[0]) ** 2, np.outer(ratio, ratio)
    removed = (weight * np.maximum(0, pair - math.exp(epsilon))).sum()
    added = (weight * np.maximum(0, 1 - math.exp(epsilon) * pair)).sum()
    ours = delta({PoissonGaussian(rate, noise): 2}, epsilon)
    assert ours == pytest.approx(max(removed, added), rel=2e-3, abs=1e-9)
    assert ours >= max(removed, added) * (1 - 1e-4)


@pytest.mark.parametrize(
    ("size", "noise", "epsilon"), [(1, 2.0, 0.01), (30, 1.0, 0.2), (30, 1.0, 1.0), (100, 3.0, 1.0)]
)
def test_one_batch_of_fixed_size(size, noise, epsilon):
    """Exact: sampling shrinks e^epsilon - 1 and delta by the same factor."""
    rate = size / 100
    exact = rate * gaussian_delta(2 / noise, math.log1p(math.expm1(epsilon) / rate))
    assert is_tight(delta({FixedSizeGaussian(size, 100, noise): 1}, epsilon), exact)


X = np.linspace(-12, 12, 601)


def hockey_stick(first, second, epsilon):
    """Delta of one release and of two between mixtures of unit Gaussians, given as means with their probabilities."""
    p, q = (sum(weight * np.exp(-((X - mean) ** 2) / 2) for mean, weight in one) for one in (first, second))
    scale = (X[1] - X[0]) / math.sqrt(2 * math.pi)
    once = np.maximum(0, p - math.exp(epsilon) * q).sum() * scale
    return once, np.maximum(0, np.outer(p, p) - math.exp(epsilon) * np.outer(q, q)).sum() * scale**2


@pytest.mark.parametrize(("rate", "noise", "others"), [(0.3, 1.0, -1.0), (0.7, 2.0, -1.0), (0.7, 2.0, 1.0)])
def test_no_truncated_batch_of_any_number_of_records_costs_more(rate, noise, others):
    """Exact: all data sets of at most nine records with one sum, in which the record has another one."""
    event = TruncatedPoissonGaussian(rate, noise, largest_batch=2, most_records=9)
    ours = {(e, t): delta({event: t}, e) for e in (0.2, 1.0, 2.0) for t in (1, 2)}
    worst = dict.fromkeys(ours, 0.0)
    for number in range(9):
        without, within = [], []
        for drawn, chance in enumerate(binom.pmf(range(number + 1), number, rate)):
            kept, enters = min(drawn, 2), rate * min(1, 2 / (drawn + 1))
            with_it = others * min(drawn, 1) + 1
            without.append((others * kept / noise, chance))
            within += [(others * kept / noise, chance * (1 - enters)), (with_it / noise, chance * enters)]
        for e in (0.2, 1.0, 2.0):
            for pair in ((without, within), (within, without)):
                for t, found in enumerate(hockey_stick(*pair, e), start=1):
                    worst[e, t] = max(worst[e, t], found)
    assert all(ours[key] >= worst[key] * (1 - 1e-6) for key in ours)


def test_a_truncated_batch_costs_less_where_it_leaves_the_record_out():
    rate, noise, size, most = 0.1, 1.2, 12, 100
    for epsilon in (0.05, 0.8):
        grows, exchanges = (delta({PoissonGaussian(rate, s): 1}, epsilon) for s in (noise, noise / 2))
        for others in (most, 4 * most):
            event, full = TruncatedPoissonGaussian(rate, noise, size, others), binom.sf(size - 1, others, rate)
            known = (1 - full) * grows + full * exchanges
            assert (0.8 if others == most else 0.5) * known < delta({event: 1}, epsilon) < known
    never_full = TruncatedPoissonGaussian(rate, noise, most + 1, most)
    assert ends_of_cases(never_full) == [0, most]
    assert delta({never_full: 7}, 0.5) == pytest.approx(delta({PoissonGaussian(rate, noise): 7}, 0.5), rel=1e-9)
    both = {TruncatedPoissonGaussian(rate, noise, size, most): 7, TruncatedPoissonGaussian(0.2, 3.0, 9, 60): 5}
    for events in ({never_full: 7}, {event: 7}, both):
        assert delta(events, 1.0) <= RdpAccountant().compose(events).delta(epsilon=1.0)


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.7), (0.5, 2.0), (1.0, 1.5)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_a_replaced_record_of_poisson_batches(rate, noise, epsilon):
    """Exact: of all pairs of sums that the two records may have, the opposite ones have the largest delta."""
    ours = [delta({ReplacedPoissonGaussian(rate, noise): times}, epsilon) for times in (1, 2)]

    def exact(one, other):
        mixtures = ([(0.0, 1 - rate), (shift / noise, rate)] for shift in (one, other))
        return hockey_stick(*mixtures, epsilon)

    assert ours == pytest.approx(exact(1, -1), rel=2e-3)  # what a sum over points resolves
    assert max(exact(one, other)[0] for one in (1, 0.5) for other in (-0.5, 0.0, 0.5)) < ours[0]


def test_replaced_records_of_runs_cost_what_another_library_computes():
    library = from_gaussian_mechanism(
        1.0, sampling_prob=0.01, neighboring_relation=NeighboringRelation.REPLACE_ONE
    ).self_compose(1000)
    ours = PldAccountant().compose({ReplacedPoissonGaussian(0.01, 1.0): 1000}).epsilon(delta=1e-5)
    assert ours == pytest.approx(library.get_epsilon_for_delta(1e-5), rel=1e-3)
    assert PldAccountant().compose({ReplacedPoissonGaussian(0.01, 1e-4): 1}).epsilon(delta=1e-5) == math.inf
    with pytest.raises(UnsupportedEventError, match="use the pld accountant"):
        RdpAccountant().compose({ReplacedPoissonGaussian(0.01, 1.0): 1})


def test_users_are_groups_and_one_record_is_a_record():
    one, group = UserLevel(PoissonGaussian(0.02, 2.0), 1), UserLevel(PoissonGaussian(0.02, 2.0), 3)
    assert delta({one: 30}, 0.4) == pytest.approx(delta({PoissonGaussian(0.02, 2.0): 30}, 0.4), rel=1e-6)
    assert delta({group: 30}, 0.4) > 3 * delta({one: 30}, 0.4)
    over_all = {UserLevel(Gaussian(20.0), 4): 3}
    assert delta(over_all, 0.4) == pytest.approx(gaussian_delta(math.sqrt(3) / 5, 0.4), rel=1e-6)


def test_all_kinds_compose_with_each_other():
    """Together they cost more than any alone, and less than all amounts added up."""
    kinds = [PoissonGaussian(0.01, 1.5), Gaussian(30.0), TruncatedPoissonGaussian(0.01, 2.0, 130, 10_000)]
    kinds += [BallsInBinsGaussian(200, 4.0), Laplace(20.0), DiscreteGaussian(30.0), ZcdpAmount(0.001)]
    kinds += [DpAmount(0.05, 1e-9), RepeatAndSelect(((PoissonGaussian(0.01, 4.0), 20),), 4.0, 1.0)]
    alone = [PldAccountant().compose({kind: 3}).epsilon(delta=1e-6) for kind in kinds]
    together = PldAccountant().compose(dict.fromkeys(kinds, 3)).epsilon(delta=len(kinds) * 1e-6)
    assert max(alone) < together < 0.8 * sum(alone)
    exchanged = PldAccountant().compose(dict.fromkeys(reversed(kinds), 3)).epsilon(delta=len(kinds) * 1e-6)
    assert exchanged == pytest.approx(together, rel=1e-9)


@pytest.mark.parametrize(("rho", "small"), [(1e-6, 1e-6), (0.02, 1e-12), (0.5, 1e-2), (8.0, 1e-6)])
def test_amounts_of_divergence_keep_their_delta(rho, small):
    """Alone they cost what the divergences say, and composed with nothing but themselves hardly more."""
    known = RdpAccountant(orders=np.geomspace(1.001, 1e9, 3000).tolist()).compose({ZcdpAmount(rho): 2})
    ours = PldAccountant().compose({ZcdpAmount(rho): 2}).epsilon(delta=small)
    assert ours >= known.epsilon(delta=small) * (1 - 1e-6)
    assert ours <= known.epsilon(delta=small) * 1.05 + 1e-9


def test_a_bound_from_divergences_is_not_below_them_in_between():
    either = renyi_loss(RdpAccountant().compose({ZcdpAmount(0.3): 1}), 1e-12)
    assert either.masses.min() > 0
    for epsilon in np.linspace(0.001, 5, 400):
        from_values = either.lost + either.masses @ np.maximum(0, 1 - np.exp(epsilon - either.losses))
        assert from_values >= gaussian_delta(math.sqrt(0.6), epsilon) * (1 - 1e-9)  # a mechanism with this divergence
    assert (either.masses * np.exp(-either.losses)).sum() <= 1 + 1e-6


COARSE = {"privacy_loss.POINTS_PER_DEVIATION": 3, "privacy_loss.MOST_INTERVALS": 30}
COARSE |= {"pld.ADDED_COST": 1e-2, "pld.MOST_POINTS": 20, "pld.LEAST_TERM": 1e-4}


@pytest.mark.parametrize("event", [PoissonGaussian(0.02, 0.9), UserLevel(PoissonGaussian(0.05, 3.0), 4)])
@pytest.mark.parametrize(("name", "coarse"), COARSE.items())
def test_a_coarser_computation_costs_more_and_never_less(event, name, coarse, monkeypatch):
    fine = [delta({event: 40}, epsilon) for epsilon in (0.1, 1.0, 3.0)]
    monkeypatch.setattr(f"noisette.accounting.{name}", coarse)
    directions_of.cache_clear()
    coarser = [delta({event: 40}, epsilon) for epsilon in (0.1, 1.0, 3.0)]
    assert all(more >= less for more, less in zip(coarser, fine, strict=True))
    assert coarser != fine


def test_the_distance_of_images_may_be_anything(monkeypatch):
    """Images of the periodic sum are positive: too small a distance costs more."""
    composition = Composition({directions_of(PoissonGaussian(0.02, 0.9), 1e-12).removed: 40}, 0.0)
    fine = composition.delta(1.0)
    for span in (0.3, 1.0, 2.0):
        monkeypatch.setattr(Composition, "_span", lambda *_, span=span: span)
        assert composition.delta(1.0) >= fine * (1 - 1e-6)


@pytest.mark.parametrize("event", [
    PoissonGaussian(1e-6, 1.0), PoissonGaussian(0.3, 0.05), PoissonGaussian(0.01, 300.0), FixedSizeGaussian(3, 9, 0.7),
    UserLevel(PoissonGaussian(0.2, 2.0), 20), TruncatedCase.of(TruncatedPoissonGaussian(0.1, 1.0, 9, 80), 0, 80),
    BallsInBinsGaussian(40, 3.0), ReplacedPoissonGaussian(0.02, 0.9), ReplacedPoissonGaussian(1e-6, 20.0),
])  # fmt: skip
@pytest.mark.parametrize("tail", [1e-9, 1e-30])
def test_probabilities_are_complete_and_the_other_output_has_no_more(event, tail):
    """Under the first output the losses have probability 1 or, rounded up, more; under the second, hardly more."""
    for one in directions_of(event, tail):
        assert 1 <= one.masses.sum() + one.lost <= 1 + 1e-9 + 4 * tail
        assert (one.masses * np.exp(-one.losses)).sum() <= 1 + 1e-9
        assert one.lost <= 4 * tail


def test_every_sum_is_that_of_all_products():
    """Exact: the losses of three releases of two distributions, by enumeration."""
    rng = np.random.default_rng(0)
    first, second = (LossDistribution(rng.normal(0, 1, 5), rng.dirichlet(np.ones(5))) for _ in range(2))
    composition = Composition({first: 2, second: 1}, 0.0)
    for epsilon in (0.0, 0.4, 1.5, 2.5):
        exact = math.fsum(
            first.masses[i] * first.masses[j] * second.masses[k]
            * max(0.0, -math.expm1(epsilon - first.losses[i] - first.losses[j] - second.losses[k]))
            for i, j, k in itertools.product(range(5), repeat=3)
        )  # fmt: skip
        assert is_tight(composition.delta(epsilon), exact, 1e-2)
