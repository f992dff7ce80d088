import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisette.accounting import (
    BallsInBinsGaussian,
    BandedGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GdpAccountant,
    GroupPrivacy,
    Laplace,
    MomentsAccountant,
    Neighbouring,
    PldAccountant,
    PoissonGaussian,
    RdpAccountant,
    RepeatAndSelect,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.accounting.events import event_of, facts_of
from noisette.errors import UnsupportedEventError

RELEASE = PoissonGaussian(0.01, 4.0)
ACCOUNTANTS = [PldAccountant(), RdpAccountant(), MomentsAccountant()]


def test_an_event_states_its_relation_and_its_sampling():
    assert RELEASE.neighbouring is Neighbouring.ADD_OR_REMOVE_ONE
    assert RELEASE.sampling == "Poisson"
    with pytest.raises(dataclasses.FrozenInstanceError):
        RELEASE.sampling_rate = 0.5  # pyright: ignore[reportAttributeAccessIssue]


def test_equal_events_are_one_key():
    assert {PoissonGaussian(1, 4): 1} == {PoissonGaussian(np.float64(1.0), np.float64(4.0)): 1}


def test_bad_numbers_are_refused_by_name():
    for rate in (0, -0.1, 1.0000001, math.nan, math.inf, "0.1", True):
        with pytest.raises((ValueError, TypeError), match="sampling_rate"):
            PoissonGaussian(rate, 1.0)
    for noise in (0.0, -1.0, math.nan, math.inf, None):
        with pytest.raises((ValueError, TypeError), match="noise_multiplier"):
            PoissonGaussian(0.1, noise)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gaussian(0.0), "noise_multiplier"),
        (lambda: Gaussian("1"), "noise_multiplier"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5),)), "add up to 1"),
        (lambda: Gaussian(1.0, parts=(("a", 1.5), ("b", -0.5))), "share of a"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5), ("a", 0.5))), "different names"),
        (lambda: FixedSizeGaussian(0, 10, 1.0), "batch_size"),
        (lambda: FixedSizeGaussian(1, 2.5, 1.0), "size"),
        (lambda: FixedSizeGaussian(11, 10, 1.0), "batch_size <= size"),
        (lambda: FixedSizeGaussian(1, 10, math.nan), "noise_multiplier"),
        (lambda: GroupPrivacy(RELEASE, 0), "records"),
        (lambda: GroupPrivacy(RELEASE, 1.5), "records"),
        (lambda: GroupPrivacy(FixedSizeGaussian(1, 2, 1.0), 2), "FixedSizeGaussian"),
        (lambda: GroupPrivacy(GroupPrivacy(RELEASE, 2), 2), "GroupPrivacy"),
        (lambda: RepeatAndSelect((), 2.0, 1.0), "one run"),
        (lambda: RepeatAndSelect(((RELEASE, 0),), 2.0, 1.0), "times"),
        (lambda: RepeatAndSelect(((FixedSizeGaussian(1, 2, 1.0), 1),), 2.0, 1.0), "FixedSizeGaussian"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 0.5, math.inf), "mean"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), math.inf, 1.0), "mean"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 2.0, -0.5), "shape"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 2.0, math.nan), "shape"),
        (lambda: RepeatAndSelect(((RELEASE, 1),), 2.0, "many"), "shape"),
    ],
)
def test_invalid_events_are_refused_by_name(make, named):
    with pytest.raises((ValueError, TypeError), match=named):
        make()


def test_a_relation_is_named_in_words():
    assert FixedSizeGaussian(1, 2, 1.0).relation == "replace one record"
    assert GroupPrivacy(RELEASE, 3).relation == "add or remove a group of 3 records"
    assert GroupPrivacy(RELEASE, 3).neighbouring is Neighbouring.ADD_OR_REMOVE_GROUP
    assert RepeatAndSelect(((RELEASE, 3),), 2.0, 1.0).relation == RELEASE.relation == Gaussian(1.0).relation


class Unknown(Event):
    mechanism, sampling = "unknown", "none"


GROUP, SEARCH = GroupPrivacy(RELEASE, 2), RepeatAndSelect(((RELEASE, 1),), 2.0, 1.0)


@pytest.mark.parametrize(
    ("accountant", "event", "way_out"),
    [
        (MomentsAccountant(), GROUP, "pld or the rdp"),
        (MomentsAccountant(), SEARCH, "pld or the rdp"),
        (PldAccountant(), Unknown(), "no accountant"),
        (RdpAccountant(), Unknown(), "no accountant"),
        (MomentsAccountant(), Unknown(), "no accountant"),
        (GdpAccountant(), Unknown(), "no accountant"),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "mechanism", "")),
)
def test_an_unsupported_event_is_refused_by_name_with_the_way_out(accountant, event, way_out):
    with pytest.raises(UnsupportedEventError) as refusal:
        accountant.compose({event: 3})
    message = str(refusal.value)
    assert f"the {accountant.name} accountant" in message
    assert repr(event) in message
    assert way_out in message.split(repr(event))[1]


rates = st.floats(1e-300, 1)
noises = st.floats(1e-300, 1e300)
counts = st.integers(1, 10**12)
names = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True)
parts = st.just(()) | names.map(lambda named: tuple((name, 1 / len(named)) for name in named))

users = st.builds(UserLevel, st.builds(PoissonGaussian, rates, noises), counts)
others = (
    st.builds(TruncatedPoissonGaussian, rates, noises, counts, counts, parts)
    | st.builds(BallsInBinsGaussian, counts, noises, parts)
    | st.builds(BandedGaussian, st.floats(1e-300, 0.1), noises, st.integers(1, 10), parts)
    | st.builds(Laplace, noises)
    | st.builds(DiscreteGaussian, noises)
    | st.builds(ZcdpAmount, noises, st.text())
    | st.builds(DpAmount, st.floats(0, 1e300), st.floats(0, 0.9), st.text())
)
sampled = st.builds(Gaussian, noises, parts) | st.builds(PoissonGaussian, rates, noises, parts)
batches = st.tuples(counts, counts).map(sorted)
fixed_size = st.builds(lambda ends, noise: FixedSizeGaussian(ends[0], ends[1], noise), batches, noises)
groups = st.builds(GroupPrivacy, sampled, counts)
runs = st.lists(st.tuples(sampled, counts), min_size=1, max_size=3).map(tuple)
searches = st.builds(RepeatAndSelect, runs, st.floats(1, 1e9), st.floats(0, 1e9) | st.just(math.inf))


@given(sampled | fixed_size | groups | users | searches | others)
def test_every_event_comes_back_from_a_line_of_json(event):
    line = json.dumps(facts_of(event), allow_nan=False)
    again = event_of(json.loads(line))
    assert again == event
    assert hash(again) == hash(event)
    assert json.dumps(facts_of(again)) == line
    facts = json.loads(line)
    assert facts["mechanism"] == event.mechanism
    assert facts["neighbouring"] == event.relation
    assert facts["sampling"] == event.sampling


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"mechanism": "Cauchy", "noise_multiplier": 1.0},
        {"mechanism": "Gaussian"},
        {"mechanism": "Gaussian", "noise_multiplier": -1.0},
        {"mechanism": "Poisson Gaussian", "noise_multiplier": 1.0, "sampling_rate": 2.0},
        {"mechanism": "fixed-size Gaussian", "noise_multiplier": 1.0, "batch_size": 3, "size": 2},
        {"mechanism": "seen by a group", "records": 2, "event": facts_of(FixedSizeGaussian(1, 2, 1.0))},
        {"mechanism": "repeated runs", "mean": 2.0, "shape": "many", "run": [[facts_of(Gaussian(1.0)), 1]]},
        {"mechanism": "repeated runs", "mean": 2.0, "shape": "1.0", "run": []},
    ],
)
def test_facts_that_describe_no_event_are_refused(facts):
    with pytest.raises((KeyError, TypeError, ValueError)):
        event_of(facts)


def test_only_events_of_this_package_have_facts():
    class Other(Gaussian):
        pass

    class Stranger(type(Gaussian(1.0)).__base__):
        mechanism, sampling = "stranger", "none"

    assert facts_of(Other(1.0))["mechanism"] == "Gaussian"
    with pytest.raises(TypeError, match="event of this package"):
        facts_of(Stranger())
