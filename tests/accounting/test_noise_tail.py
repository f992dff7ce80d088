import math

import mpmath
import pytest

from noisette.accounting import (
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    PoissonGaussian,
    RepeatAndSelect,
    tail_delta,
    tail_delta_of,
)

# noise: delta at rate * steps = 100 for 1, 1e6 and 1e8 elements, without the factor 2, radius of 53 bits.
TABLE = {
    0.5: (2.5e-9, 2.5e-9, 2.5e-9),
    1.0: (1.8e-12, 4.4e-12, 4.4e-11),
    2.0: (3.4e-14, 2.2e-12, 2.2e-11),
}


@pytest.mark.parametrize("noise", TABLE)
def test_oracle_table(noise):
    for dimensions, delta in zip((1, 10**6, 10**8), TABLE[noise], strict=True):
        ours = tail_delta(noise_multiplier=noise, sampling_rate=0.01, steps=10_000, dimensions=dimensions)
        assert ours == pytest.approx(2 * delta, rel=0.03)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("dimensions", [1, 2, 500])
def test_against_every_number_of_elements(noise, dimensions):
    """The grid leaves out some numbers of elements; the doubling exceeds the error by far."""
    radius = mpmath.sqrt(2 * 53 * mpmath.log(2))

    def unreachable(k):
        return k * (mpmath.ncdf(1 / (noise * mpmath.sqrt(k)) - radius) - mpmath.ncdf(-radius))

    truth = float(2 * max(unreachable(k) for k in range(1, dimensions + 1)))
    ours = tail_delta(noise_multiplier=noise, sampling_rate=1.0, steps=1, dimensions=dimensions)
    assert ours == pytest.approx(min(1.0, truth), rel=1e-2)


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
        (FixedSizeGaussian(10, 100, 1.6), 0.8, 0.1, 1),
        (GroupPrivacy(PoissonGaussian(0.01, 2.4), 3), 0.8, 0.03, 1),
        (GroupPrivacy(PoissonGaussian(0.5, 2.4), 3), 0.8, 1.0, 1),
        (GroupPrivacy(Gaussian(1.6), 2), 0.8, 1.0, 1),
        (RepeatAndSelect(((PoissonGaussian(0.01, 0.8), 50),), mean=4.0, shape=1.0), 0.8, 0.01, 200),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tail_of_each_kind_of_event(event, noise, rate, times):
    """Replacing an example doubles the sensitivity, a group multiplies it; repeated runs count by their mean."""
    expected = tail_delta(noise_multiplier=noise, sampling_rate=rate, steps=times, dimensions=1000)
    assert tail_delta_of({event: 1}, dimensions=1000) == pytest.approx(expected, rel=1e-9)
    assert tail_delta_of({event: 1}) > expected


def test_tail_of_something_else_is_refused():
    with pytest.raises(TypeError, match="expected an event"):
        tail_delta_of({"noise": 1})
