import dataclasses
import math

import numpy as np
import pytest

from noisette.accounting import MomentsAccountant, Neighbouring, PldAccountant, PoissonGaussian, RdpAccountant

RELEASE = PoissonGaussian(0.01, 4.0)
ACCOUNTANTS = [PldAccountant(), RdpAccountant(), MomentsAccountant()]


def test_an_event_states_its_relation_and_its_sampling():
    assert RELEASE.neighbouring is Neighbouring.ADD_OR_REMOVE_ONE
    assert RELEASE.sampling == "Poisson"
    with pytest.raises(dataclasses.FrozenInstanceError):
        RELEASE.sampling_rate = 0.5  # pyright: ignore[reportAttributeAccessIssue]


def test_equal_events_are_one_key():
    assert {PoissonGaussian(1, 4): 1} == {PoissonGaussian(np.float64(1.0), np.float64(4.0)): 1}


@pytest.mark.parametrize(
    ("rate", "noise", "named"),
    [
        (0, 1.0, "sampling_rate"),
        (-0.1, 1.0, "sampling_rate"),
        (1.0000001, 1.0, "sampling_rate"),
        (math.nan, 1.0, "sampling_rate"),
        (math.inf, 1.0, "sampling_rate"),
        ("0.1", 1.0, "sampling_rate"),
        (True, 1.0, "sampling_rate"),
        (0.1, 0.0, "noise_multiplier"),
        (0.1, -1.0, "noise_multiplier"),
        (0.1, math.nan, "noise_multiplier"),
        (0.1, math.inf, "noise_multiplier"),
        (0.1, None, "noise_multiplier"),
    ],
)
def test_bad_numbers_are_refused_by_name(rate, noise, named):
    with pytest.raises((ValueError, TypeError), match=named):
        PoissonGaussian(rate, noise)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
@pytest.mark.parametrize("times", [0, -1, 1.5, math.nan, "3", True])
def test_a_number_of_releases_is_a_whole_number(accountant, times):
    with pytest.raises((ValueError, TypeError), match="times"):
        accountant.price({RELEASE: times})


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
def test_only_events_are_priced(accountant):
    with pytest.raises(TypeError, match="PoissonGaussian"):
        accountant.price({(0.01, 4.0): 1})


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, math.nan, math.inf, "1e-5", None])
def test_a_bad_delta_is_refused_by_name(accountant, delta):
    with pytest.raises((ValueError, TypeError), match="delta"):
        accountant.price({RELEASE: 1}).epsilon(delta=delta)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
@pytest.mark.parametrize("epsilon", [0, -0.1, math.nan, math.inf, "1", None])
def test_a_bad_epsilon_is_refused_by_name(accountant, epsilon):
    with pytest.raises((ValueError, TypeError), match="epsilon"):
        accountant.price({RELEASE: 1}).delta(epsilon=epsilon)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
def test_nothing_released_costs_nothing(accountant):
    nothing = accountant.price({})
    assert nothing.epsilon(delta=1e-9) == 0
    assert nothing.delta(epsilon=0.1) == 0
