from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from noisette.training.report.numbers import percent, power_of_ten, upward


@given(st.floats(min_value=0, max_value=1e6))
def test_an_epsilon_is_never_printed_smaller_than_it_is(epsilon: float) -> None:
    printed = float(upward(epsilon))
    assert epsilon <= printed <= epsilon + 0.0101


@given(st.floats(min_value=1e-300, max_value=0.01))
def test_a_small_epsilon_has_two_digits(epsilon: float) -> None:
    assert epsilon <= float(upward(epsilon)) <= 1.1001 * epsilon
    assert (upward(1e-6), upward(9.91e-3), upward(0.0)) == ("0.0000010", "0.0100", "0.00")


def test_an_epsilon_without_bound_is_called_so() -> None:
    assert upward(math.inf) == "infinite"


@given(st.floats(min_value=1e-300, max_value=0.9))
def test_a_power_of_ten_reads_back_to_two_digits(delta: float) -> None:
    assert math.isclose(float(power_of_ten(delta)), delta, rel_tol=0.05)


def test_all_right_is_one_hundred_percent() -> None:
    assert percent(1.0) == "100.0 %"
