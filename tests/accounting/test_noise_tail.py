import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import ncx2

from noisette.accounting import (
    BallsInBinsGaussian,
    DiscreteGaussian,
    DpAmount,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
    noise_tail,
    tail_delta,
    tail_delta_of,
)

RADIUS = math.sqrt(2 * 53 * math.log(2))


def crescent(shift):
    """The mass of a Gaussian point in a disc that, moved by the shift, is outside the disc: an integral over radii.

    One part in ten thousand, more than the error of the quadrature, is taken off.

    A circle of radius r about the origin, moved by s, has the part acos((R^2 - r^2 - s^2) / (2 r s)) / pi outside.
    """

    def density(r):
        cosine = (RADIUS**2 - r**2 - shift**2) / (2 * r * shift)
        return r * math.exp(-(r**2) / 2) * math.acos(min(1.0, max(-1.0, cosine))) / math.pi

    nodes, weights = np.polynomial.legendre.leggauss(200)
    edges = np.linspace(max(0.0, RADIUS - shift), RADIUS, 20)
    return (1 - 1e-4) * sum(
        weight * (high - low) / 2 * density((high + low) / 2 + (high - low) / 2 * node)
        for low, high in pairwise(edges.tolist())
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)
    )


def tail_of_a_step(noise, dimensions):
    return tail_delta(noise_multiplier=noise, sampling_rate=1.0, steps=1, dimensions=dimensions)


@pytest.mark.parametrize("shift", [1e-6, 0.01, 0.2, 1.0, 2.5, 5.0, 7.9])
def test_the_crescent_of_one_pair_counts_twice(shift):
    """One element, or both elements of a pair: the shift of the pair is the same, in whatever direction."""
    truth = crescent(shift)
    ours = tail_of_a_step(1 / shift, 1)
    assert min(1, 2 * truth) <= ours
    assert ours <= min(1, 2 * truth) * 1.4
    if shift >= 1:
        assert ours <= min(1, 2 * truth) * 1.02


def test_the_mass_of_the_crescent_over_a_grid_of_the_disc():
    """The integral over radii, against a plain sum over a fine grid of the plane."""
    shift, spacing = 2.0, 0.005
    x = np.arange(-RADIUS, RADIUS, spacing) + spacing / 2
    x, y = np.meshgrid(x, x)
    inside, moved = x**2 + y**2 <= RADIUS**2, (x + shift) ** 2 + y**2 > RADIUS**2
    mass = np.exp(-(x**2 + y**2) / 2)[inside & moved].sum() * spacing**2 / (2 * math.pi)
    assert crescent(shift) == pytest.approx(mass, rel=1e-2)


@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("dimensions", [1, 2, 7, 1000, 10**6])
def test_no_division_of_the_shift_among_pairs_has_a_larger_crescent(noise, dimensions):
    """Equal shifts of any number of pairs, and one pair with a large part beside many with the rest."""
    ours = tail_of_a_step(noise, dimensions)
    for pairs in {1, 2, dimensions // 2 or 1, dimensions} & set(range(1, dimensions + 1)):
        assert 2 * pairs * crescent(1 / (noise * math.sqrt(pairs))) <= ours or ours == 1
    for part in (0.1, 0.5, 0.9) if dimensions > 1 else ():
        rest = math.sqrt((1 - part**2) / (dimensions - 1)) / noise
        assert 2 * (crescent(part / noise) + (dimensions - 1) * crescent(rest)) <= ours or ours == 1


def test_what_the_bound_takes_for_granted_of_a_pair():
    """The mass beyond the radius is convex in the square of the shift, as far as that is used, and then below 1."""
    squares = np.linspace(0, 64, 400)
    beyond = np.array([ncx2.sf(RADIUS**2, 2, square) if square else 2.0**-53 for square in squares])
    assert (np.diff(beyond, 2) > -1e-15).all()
    assert 0.6 < 2 * beyond[-1] < 1
    for shift in (0.5, 1.0, 3.0, 7.9):
        assert noise_tail._moved_beyond(shift) == pytest.approx(ncx2.sf(RADIUS**2, 2, shift**2) - 2.0**-53, rel=1e-6)
    assert tail_of_a_step(0.12, 1) == 1


def increase_by_cutting(shift, rate):
    """The increase of the hockey-stick divergences of one sampled pair, both ways, by cutting the disc: on a grid.

    The Gaussian of the grid is cut at a smaller radius, so that what is lost can be seen, and divided by what is left.
    """
    radius, spacing = 3.0, 0.02
    x = np.arange(-9, 9, spacing)
    x, y = np.meshgrid(x, x)
    weight = spacing**2 / (2 * math.pi)
    plain, moved = np.exp(-(x**2 + y**2) / 2) * weight, np.exp(-((x - shift) ** 2 + y**2) / 2) * weight
    cut_plain, cut_moved = plain * (x**2 + y**2 <= radius**2), moved * ((x - shift) ** 2 + y**2 <= radius**2)
    lost = cut_moved[x**2 + y**2 > radius**2].sum()
    cut_plain, cut_moved = cut_plain / cut_plain.sum(), cut_moved / cut_moved.sum()
    whole, cut = (1 - rate) * plain + rate * moved, (1 - rate) * cut_plain + rate * cut_moved
    increases = []
    for factor in np.exp(np.linspace(0, 3, 60)):
        for exact, ours in (((whole, plain), (cut, cut_plain)), ((plain, whole), (cut_plain, cut))):
            divergences = [np.maximum(p - factor * q, 0).sum() for p, q in (exact, ours)]
            increases.append(divergences[1] - divergences[0])
    beyond = math.exp(-(radius**2) / 2)
    allowed = rate * (2 * lost + beyond * shift / math.sqrt(2 * math.pi)) / (1 - beyond)
    return max(increases), allowed


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("shift", [0.1, 0.5, 1.5])
def test_cutting_a_disc_costs_no_more_than_its_crescents(shift, rate):
    """The theorem itself, at a radius of 3, by sums over a grid."""
    increase, allowed = increase_by_cutting(shift, rate)
    assert 0 < increase <= allowed * 1.01


def test_it_grows_with_participations_and_is_a_probability():
    plan = {"noise_multiplier": 0.5, "dimensions": 1000}
    once = tail_delta(sampling_rate=0.01, steps=100, **plan)
    assert tail_delta(sampling_rate=0.02, steps=300, **plan) == pytest.approx(6 * once)
    assert tail_delta(noise_multiplier=1e-300, sampling_rate=1.0, steps=10**9, dimensions=10) == 1


GOOD = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 100, "dimensions": 10}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", 0),
        ("noise_multiplier", math.nan),
        ("sampling_rate", 1.5),
        ("steps", 0),
        ("steps", 1.0),
        ("dimensions", 0),
        ("dimensions", "many"),
    ],
)
def test_bad_numbers_are_refused_by_name(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        tail_delta(**(GOOD | {name: value}))


def test_tail_of_a_ledger_is_the_sum_of_its_events():
    whole, part = Gaussian(0.6), PoissonGaussian(0.01, 0.8)
    expected = 3 * tail_delta(noise_multiplier=0.6, sampling_rate=1.0, steps=1, dimensions=2**40) + tail_delta(
        noise_multiplier=0.8, sampling_rate=0.01, steps=500, dimensions=2**40
    )
    assert tail_delta_of({whole: 3, part: 500}) == pytest.approx(expected, rel=1e-9)
    assert tail_delta_of({}) == 0
    assert tail_delta_of({Gaussian(0.05): 10}) == 1


@pytest.mark.parametrize(
    ("event", "noise", "rate", "times"),
    [
        (FixedSizeGaussian(10, 100, 1.6), 0.8, 0.2, 1),
        (TruncatedPoissonGaussian(0.1, 1.6, 20, 1000), 0.8, 0.2, 1),
        (TruncatedPoissonGaussian(0.9, 1.6, 20, 1000), 0.8, 1.0, 1),
        (BallsInBinsGaussian(100, 0.8), 0.8, 1.0, 1),
        (GroupPrivacy(Gaussian(1.6), 2), 0.8, 1.0, 1),
        (UserLevel(Gaussian(1.6), 2), 0.8, 1.0, 1),
        (RepeatAndSelect(((PoissonGaussian(0.01, 0.8), 50),), mean=4.0, shape=1.0), 0.8, 0.01, 200),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tail_of_each_kind_of_event(event, noise, rate, times):
    """Replacing an example doubles the sensitivity, a group multiplies it; repeated runs count by their mean."""
    expected = tail_delta(noise_multiplier=noise, sampling_rate=rate, steps=times, dimensions=1000)
    assert tail_delta_of({event: 1}, dimensions=1000) == pytest.approx(expected, rel=1e-8)
    assert tail_delta_of({event: 1}) > expected


@pytest.mark.parametrize("kind", [GroupPrivacy, UserLevel])
@pytest.mark.parametrize(("rate", "records"), [(0.01, 3), (0.2, 3), (0.9, 2), (0.01, 10), (1e-4, 500)])
def test_a_sampled_group_lies_between_its_crescents_and_all_records_in_every_batch(kind, rate, records):
    """Each number of records is as likely as the binomial says; all crescents count at least once."""
    noise, dimensions = 1.6, 1000
    ours = tail_delta_of({kind(PoissonGaussian(rate, noise), records): 1}, dimensions=dimensions)
    chances = {k: math.comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in range(1, min(records, 20) + 1)}
    assert sum(chance * crescent(k / noise) for k, chance in chances.items() if k / noise < 8) <= ours
    assert ours <= records * rate
    if records == 3 and rate == 0.01:
        singles = tail_delta_of({PoissonGaussian(rate, noise): records}, dimensions=dimensions)
        assert singles <= ours <= 1.5 * singles


@pytest.mark.parametrize("event", [Laplace(1.0), DiscreteGaussian(2.0), ZcdpAmount(0.1), DpAmount(0.5, 1e-9)])
def test_noise_of_others_takes_nothing(event):
    assert tail_delta_of({event: 1000}) == 0


def test_tail_of_something_else_is_refused():
    with pytest.raises(TypeError, match="expected an event"):
        tail_delta_of({"noise": 1})
