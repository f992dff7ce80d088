import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noisette import BallsInBinsGaussian, PldAccountant, RdpAccountant, TruncatedPoissonGaussian, UserLevel, ZcdpAmount
from noisette.accounting import FixedSizeGaussian, GroupPrivacy, Laplace, Neighbouring, PoissonGaussian, RepeatAndSelect
from noisette.accounting.events import BandedGaussian, DiscreteGaussian, DpAmount, Event, Gaussian, event_of, facts_of
from noisette.accounting.filters import for_several
from noisette.accounting.registry import ACCOUNTANTS
from noisette.errors import UnsupportedEventError

RELEASE = PoissonGaussian(0.01, 4.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gaussian("1"), "noise_multiplier"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5),)), "add up to 1"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5), ("a", 0.5))), "different names"),
        (lambda: FixedSizeGaussian(11, 10, 1.0), "batch_size <= size"),
        (lambda: GroupPrivacy(RELEASE, 0), "records"),
        (lambda: GroupPrivacy(GroupPrivacy(RELEASE, 2), 2), "GroupPrivacy"),
        (lambda: RepeatAndSelect((), 2.0, 1.0), "one run"),
        (lambda: RepeatAndSelect(((FixedSizeGaussian(1, 2, 1.0), 1),), 2.0, 1.0), "FixedSizeGaussian"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 0.5, math.inf), "mean"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 2.0, "many"), "shape"),
    ],
)
def test_invalid_events_are_refused_by_name(make, named):
    with pytest.raises((ValueError, TypeError), match=named):
        make()


USER = Neighbouring.ADD_OR_REMOVE_USER


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (RELEASE, "add or remove one record"),
        (RepeatAndSelect(((RELEASE, 3),), 2.0, 1.0), "add or remove one record"),
        (FixedSizeGaussian(1, 2, 1.0), "replace one record"),
        (Laplace(1.0, neighbouring=Neighbouring.REPLACE_ONE), "replace one record"),
        (GroupPrivacy(RELEASE, 3), "add or remove a group of 3 records"),
        (UserLevel(RELEASE, 3), "add or remove all records of one user"),
        (ZcdpAmount(0.1, neighbouring=USER), "add or remove all records of one user"),
        (GroupPrivacy(Gaussian(1.0, neighbouring=USER), 3), "add or remove all records of a group of 3 users"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_relation_is_named_in_words_and_found_by_them(event, relation):
    assert (event.relation, Neighbouring.of(relation)) == (relation, event.neighbouring)


def test_a_relation_that_is_none_is_refused():
    for words in ("", "add or remove one", "add or remove a group of 1 records", "replace one user"):
        with pytest.raises(ValueError, match="no neighbouring relation"):
            Neighbouring.of(words)
    with pytest.raises(TypeError, match="neighbouring='user'"):
        Gaussian(1.0, neighbouring="user")
    with pytest.raises(ValueError, match="person"):
        Neighbouring("person")
    with pytest.raises(ValueError, match=r"different neighbouring relations.*ADD_OR_REMOVE_USER"):
        PldAccountant().compose({Gaussian(1.0): 1, Gaussian(1.0, neighbouring=USER): 1})


@pytest.mark.parametrize("k", [2, 5])
def test_a_release_for_several_is_one_of_as_many_times_the_sensitivity(k):
    """With values that differ by k where one record changes them by 1, against definitions and loops."""
    assert for_several(Gaussian(6.0), k, USER) == Gaussian(6.0 / k, neighbouring=USER)
    assert for_several(Laplace(6.0), k, USER) == Laplace(6.0 / k, neighbouring=USER)
    assert for_several(UserLevel(RELEASE, 3), k, Neighbouring("user", k)).records == 3 * k
    assert for_several(RELEASE, k, USER) == UserLevel(RELEASE, k)
    assert for_several(RELEASE, k, Neighbouring(number=k)) == GroupPrivacy(RELEASE, k)
    assert for_several(FixedSizeGaussian(1, 2, 1.0), k, Neighbouring(number=k, replaced=True)) is None
    rho = for_several(ZcdpAmount(1 / (2 * 6.0**2), "x"), k, USER).rho  # of a Gaussian of noise 6
    assert rho == pytest.approx(1 / (2 * (6.0 / k) ** 2))
    values = np.arange(-90, 90 + k)
    weights = np.exp(-(values**2) / (2 * 6.0**2))
    for order in (1.5, 4):  # the divergence of discrete noise from the same moved by k
        moved = np.exp(-((values - k) ** 2) / (2 * 6.0**2))
        divergence = math.log(np.sum(moved**order * weights ** (1 - order)) / np.sum(weights)) / (order - 1)
        assert divergence <= order * for_several(DiscreteGaussian(6.0), k, USER).rho * (1 + 1e-9)
    epsilon, delta = 0.0, 0.0
    for _ in range(k):  # P(S) <= e^0.3 Q(S) + 1e-6, one record after the other
        epsilon, delta = epsilon + 0.3, delta * math.exp(0.3) + 1e-6
    found = for_several(DpAmount(0.3, 1e-6), k, USER)
    assert (found.epsilon, found.delta) == pytest.approx((epsilon, delta))


class Unknown(Event):
    mechanism, sampling = "unknown", "none"


GROUP, SEARCH = GroupPrivacy(RELEASE, 2), RepeatAndSelect(((RELEASE, 1),), 2.0, 1.0)


@pytest.mark.parametrize(
    ("accountant", "event", "way_out"),
    [
        ("moments", GROUP, "pld or the rdp"),
        ("gdp", SEARCH, "pld or the rdp"),
        ("gdp", RELEASE, "pld, the rdp or the moments"),
        ("pld", Unknown(), "no accountant"),
        ("rdp", Unknown(), "no accountant"),
    ],
)
def test_an_unsupported_event_is_refused_by_name_with_the_way_out(accountant, event, way_out):
    with pytest.raises(UnsupportedEventError) as refusal:
        ACCOUNTANTS[accountant].compose({event: 3})
    message = str(refusal.value)
    assert f"the {accountant} accountant" in message
    assert str(event) in message
    assert way_out in message.split(str(event))[1]


rates = st.floats(1e-300, 1)
noises = st.floats(1e-300, 1e300)
counts = st.integers(1, 10**12)
names = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True)
parts = st.just(()) | names.map(lambda named: tuple((name, 1 / len(named)) for name in named))

relations = st.builds(Neighbouring, st.sampled_from(["record", "user"]), st.integers(1, 9), st.booleans())
users = st.builds(UserLevel, st.builds(PoissonGaussian, rates, noises), counts)
others = (
    st.builds(TruncatedPoissonGaussian, rates, noises, counts, counts, parts)
    | st.builds(BallsInBinsGaussian, counts, noises, parts)
    | st.builds(BandedGaussian, st.floats(1e-300, 0.1), noises, st.integers(1, 10), parts)
    | st.builds(Laplace, noises, neighbouring=relations)
    | st.builds(DiscreteGaussian, noises, neighbouring=relations)
    | st.builds(ZcdpAmount, noises, st.text(), neighbouring=relations)
    | st.builds(DpAmount, st.floats(0, 1e300), st.floats(0, 0.9), st.text(), neighbouring=relations)
)
sampled = st.builds(Gaussian, noises, parts, neighbouring=relations) | st.builds(PoissonGaussian, rates, noises, parts)
batches = st.tuples(counts, counts).map(sorted)
fixed_size = st.builds(lambda ends, noise: FixedSizeGaussian(ends[0], ends[1], noise), batches, noises)
groups = st.builds(GroupPrivacy, sampled, counts)
runs = st.lists(st.tuples(st.builds(PoissonGaussian, rates, noises), counts), min_size=1, max_size=3).map(tuple)
searches = st.builds(RepeatAndSelect, runs, st.floats(1, 1e9), st.floats(0, 1e9) | st.just(math.inf))


@given(sampled | fixed_size | groups | users | searches | others)
def test_every_event_comes_back_from_a_line_of_json(event):
    line = json.dumps(facts_of(event), allow_nan=False)
    again = event_of(json.loads(line))
    assert (again, hash(again)) == (event, hash(event))
    assert json.dumps(facts_of(again)) == line
    facts = json.loads(line)
    assert (facts["mechanism"], facts["neighbouring"]) == (event.mechanism, event.relation)
    assert facts["sampling"] == event.sampling


amounts = st.sampled_from([Laplace, DiscreteGaussian, ZcdpAmount, DpAmount, lambda epsilon: DpAmount(epsilon, 0.1)])


@settings(max_examples=25, deadline=None)
@given(st.builds(lambda kind, power: kind(10.0**power), amounts, st.floats(-300, 300)), st.integers(1, 10**6))
@example(DpAmount(750.0), 1)
@example(DpAmount(1e300, 0.1), 3)
@example(Laplace(1e-6), 1)
@example(DiscreteGaussian(1e-200), 1)
@example(ZcdpAmount(1e300), 3)
def test_no_amount_is_too_large_to_be_priced(event, times):
    """A ledger cannot forget a release, so whatever it holds has a cost, which may be infinite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        epsilon = PldAccountant().compose({event: times}).epsilon(delta=1e-5)
        assert epsilon >= 0
        if not isinstance(event, DpAmount) or event.delta == 0:
            by_divergences = RdpAccountant().compose({event: times}).epsilon(delta=1e-5)
            assert by_divergences >= epsilon * (1 - 1e-3) or epsilon == math.inf


def test_facts_that_describe_no_event_are_refused():
    for facts in (
        *({}, {"mechanism": "Cauchy", "noise_multiplier": 1.0}, {"mechanism": "Gaussian"}),
        {"mechanism": "fixed-size Gaussian", "noise_multiplier": 1.0, "batch_size": 3, "size": 2},
        {"mechanism": "seen by a group", "records": 2, "event": facts_of(FixedSizeGaussian(1, 2, 1.0))},
        {"mechanism": "repeated runs", "mean": 2.0, "shape": "many", "run": [[facts_of(Gaussian(1.0)), 1]]},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            event_of(facts)
