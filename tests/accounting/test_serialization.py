import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisette.accounting import FixedSizeGaussian, Gaussian, GroupPrivacy, PoissonGaussian, RepeatAndSelect
from noisette.accounting.events import event_of, facts_of

rates = st.floats(1e-300, 1)
noises = st.floats(1e-300, 1e300)
counts = st.integers(1, 10**12)
names = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True)
parts = st.just(()) | names.map(lambda named: tuple((name, 1 / len(named)) for name in named))

sampled = st.builds(Gaussian, noises, parts) | st.builds(PoissonGaussian, rates, noises, parts)
batches = st.tuples(counts, counts).map(sorted)
fixed_size = st.builds(lambda ends, noise: FixedSizeGaussian(ends[0], ends[1], noise), batches, noises)
groups = st.builds(GroupPrivacy, sampled, counts)
runs = st.lists(st.tuples(sampled, counts), min_size=1, max_size=3).map(tuple)
searches = st.builds(RepeatAndSelect, runs, st.floats(1, 1e9), st.floats(0, 1e9) | st.just(math.inf))


@given(sampled | fixed_size | groups | searches)
def test_every_event_comes_back_from_a_line_of_json(event):
    line = json.dumps(facts_of(event), allow_nan=False)
    again = event_of(json.loads(line))
    assert again == event
    assert hash(again) == hash(event)
    assert json.dumps(facts_of(again)) == line


@given(sampled | fixed_size | groups | searches)
def test_facts_contain_mechanism_relation_and_sampling(event):
    facts = facts_of(event)
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
