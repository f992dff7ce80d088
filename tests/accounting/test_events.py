import dataclasses
import math

import numpy as np
import pytest

from noisette.accounting import (
    Event,
    FixedSizeGaussian,
    Gaussian,
    GdpAccountant,
    GroupPrivacy,
    MomentsAccountant,
    Neighbouring,
    PldAccountant,
    PoissonGaussian,
    RdpAccountant,
    RepeatAndSelect,
)
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


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gaussian(0.0), "noise_multiplier"),
        (lambda: Gaussian("1"), "noise_multiplier"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5),)), "add up to 1"),
        (lambda: Gaussian(1.0, parts=(("a", 1.5), ("b", -0.5))), "share of a"),
        (lambda: Gaussian(1.0, parts=(("a", 0.5), ("a", 0.5))), "different names"),
        (lambda: PoissonGaussian.joint(0.01, {}), "at least one part"),
        (lambda: PoissonGaussian.joint(0.01, {"top": 0.0}), "noise_multiplier of top"),
        (lambda: PoissonGaussian.quantile_query(0.01, count_deviation=-1.0), "count_deviation"),
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


def test_releases_on_one_batch_are_one_gaussian_with_the_noise_of_all_together():
    """In units of its noise the sensitivity of a part is 1 / sigma, and of all the root of the sum of squares."""
    joint = PoissonGaussian.joint(0.01, {"hidden": 3.0, "top": 4.0})
    assert joint.noise_multiplier == pytest.approx(math.hypot(1 / 3, 1 / 4) ** -1, rel=1e-12)
    assert dict(joint.parts) == pytest.approx({"hidden": 16 / 25, "top": 9 / 25})
    for accountant in ACCOUNTANTS:
        alone = accountant.compose({PoissonGaussian(0.01, 2.4): 10}).epsilon(delta=1e-5)
        assert accountant.compose({joint: 10}).epsilon(delta=1e-5) == pytest.approx(alone, rel=1e-9)


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
