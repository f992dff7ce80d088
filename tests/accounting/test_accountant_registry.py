"""What every registered accountant has in common."""

import math

import pytest

from noisette.accounting import FixedSizeGaussian, Gaussian, GroupPrivacy, PoissonGaussian
from noisette.accounting.registry import ACCOUNTANTS
from noisette.errors import UnsupportedEventError

FULL = PoissonGaussian(1.0, 4.0)  # the one kind of release that every accountant supports
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS.values(), ids=lambda a: a.name)


def test_names_and_facts_are_complete():
    assert list(ACCOUNTANTS) == ["pld", "rdp", "moments", "strong", "strong-paper", "naive", "gdp"]
    assert all(name == accountant.name for name, accountant in ACCOUNTANTS.items())
    for texts in ([a.description for a in ACCOUNTANTS.values()], [a.method for a in ACCOUNTANTS.values()]):
        assert len(set(texts)) == len(ACCOUNTANTS)
        assert all(texts)
    assert [name for name, a in ACCOUNTANTS.items() if not a.upper_bound] == ["strong-paper"]
    assert [name for name, a in ACCOUNTANTS.items() if a.in_recipes] == ["pld", "rdp", "moments"]
    assert all(a.upper_bound for a in ACCOUNTANTS.values() if a.in_recipes)


@every_accountant
@pytest.mark.parametrize(
    "others", [{FixedSizeGaussian(1, 2, 1.0): 1}, {GroupPrivacy(Gaussian(1.0), 1): 1}], ids=["replaced", "group"]
)
def test_events_of_different_relations_cannot_be_composed(accountant, others):
    with pytest.raises(ValueError, match=r"different neighbouring relations.*Gaussian\(noise_multiplier=1.0\)"):
        accountant.compose({Gaussian(1.0): 1, **others})


@every_accountant
@pytest.mark.parametrize("times", [0, -1, 1.5, math.nan, "3", True])
def test_a_number_of_releases_is_a_whole_number(accountant, times):
    with pytest.raises((ValueError, TypeError), match="times"):
        accountant.compose({FULL: times})


@every_accountant
def test_only_events_are_composed(accountant):
    with pytest.raises(TypeError, match="PoissonGaussian"):
        accountant.compose({(0.01, 4.0): 1})


@every_accountant
@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, math.nan, math.inf, "1e-5", None])
def test_a_bad_delta_is_refused_by_name(accountant, delta):
    with pytest.raises((ValueError, TypeError), match="delta"):
        accountant.compose({FULL: 1}).epsilon(delta=delta)


@every_accountant
@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf, "1", None])
def test_a_bad_epsilon_is_refused_by_name(accountant, epsilon):
    with pytest.raises((ValueError, TypeError), match="epsilon"):
        accountant.compose({FULL: 1}).delta(epsilon=epsilon)


@every_accountant
def test_delta_at_epsilon_zero(accountant):
    """At most 1, and at least the advantage of an attacker: two Gaussians a quarter of a deviation apart."""
    delta = accountant.compose({Gaussian(4.0): 1}).delta(epsilon=0)
    assert math.erf(0.25 / math.sqrt(8)) * (1 - 1e-12) <= delta <= 1


@every_accountant
def test_no_release_costs_nothing(accountant):
    nothing = accountant.compose({})
    assert nothing.epsilon(delta=1e-9) == 0
    assert nothing.delta(epsilon=0.1) == (0 if accountant.name not in ("naive", "strong", "strong-paper") else 1e-300)


@every_accountant
def test_an_unsupported_event_is_refused_by_name_with_the_way_out(accountant):
    event = FixedSizeGaussian(10, 1000, 2.0)
    if accountant.name in ("pld", "rdp"):
        assert accountant.compose({event: 1}).epsilon(delta=1e-5) > 0
        return
    with pytest.raises(UnsupportedEventError) as refusal:
        accountant.compose({event: 1})
    way_out = "use the pld or the rdp accountant"
    assert str(refusal.value) == f"the {accountant.name} accountant does not support {event!r}; {way_out}"
