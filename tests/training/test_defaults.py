"""Rules for settings: from public numbers alone, and in their stated ranges."""

import math
from typing import Any

import numpy as np
import pytest

from noisette.training.defaults import batches_for, delta_for, knots_for, learning_rate_for

RULE: dict[str, Any] = {"dimensions": 100, "noise_multiplier": 5.0, "expected_batch_size": 200, "steps": 400}


@pytest.mark.parametrize("size", [1, 2, 10, 333, 1_437, 32_561, 10**6, 10**9])
def test_batches_make_about_500_steps_and_fit_in_the_data(size):
    batches = batches_for(size)
    assert 1 <= batches.expected_batch_size <= size
    steps = batches.epochs * size / batches.expected_batch_size
    assert steps <= 500.001
    assert steps >= 450 or size < 50
    assert 10 <= batches.epochs <= 150
    assert delta_for(size) < 1 / size


def test_the_rate_balances_signal_and_noise():
    """The rate that minimises the textbook bound R^2 / (2 r T) + r G^2 / 2, by a search over rates."""
    squared, rates = 1 + 100 * (5 / 200) ** 2, np.geomspace(1e-3, 1e3, 20_001)
    bound = 100.0**2 / (2 * rates * 400) + rates * squared / 2
    assert learning_rate_for(**RULE) == pytest.approx(rates[bound.argmin()], rel=1e-3)


def test_the_rate_is_in_units_of_the_clipping_norm_and_limited_by_curvature():
    rate = learning_rate_for(**RULE)
    assert learning_rate_for(**RULE, max_grad_norm=0.1) == pytest.approx(10 * rate)
    assert learning_rate_for(**RULE, curvature=2.0) == 0.5 < rate
    assert learning_rate_for(**RULE, curvature=1e-6) * math.sqrt(400 * 100) * 5 / 200 == pytest.approx(4.0), "by noise"
    assert learning_rate_for(**RULE, momentum=0.9) == pytest.approx(rate / 10)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_steps_settle_at_twice_the_rate_of_the_curvature_and_not_beyond(momentum):
    """Heavy-ball steps on a parabola of this curvature."""
    rate = learning_rate_for(**RULE | {"noise_multiplier": 0.1}, momentum=momentum, reach=1e9, curvature=3.0)

    def last(factor: float) -> float:
        weight, velocity = 1.0, 0.0
        for _ in range(2000):
            velocity = momentum * velocity + 3.0 * weight
            weight -= factor * rate * velocity
        return abs(weight)

    assert last(1.0) < 1e-6
    assert last(1.98) < 1e-2
    assert last(2.02) > 1e2


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"noise_multiplier": 0.0}, {"expected_batch_size": math.inf}, {"momentum": 1.0}, {"curvature": 0.0}],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        learning_rate_for(**RULE | wrong)


def test_knots_are_fewer_where_records_are_few():
    assert [knots_for(20, size) for size in (10, 320, 960, 10**6)] == [0, 0, 2, 8]
