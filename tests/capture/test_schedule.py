"""The values of ``capture``, and when they trace and compile."""

from __future__ import annotations

import pytest

from noisette.capture.captured import Schedule, schedule_of


def test_each_value_has_its_schedule() -> None:
    assert schedule_of("eager") is None
    assert schedule_of("auto") == Schedule(at_once=False, compiles=True)
    assert schedule_of("graph") == Schedule(at_once=True, compiles=False)
    assert schedule_of("compiled") == Schedule(at_once=True, compiles=True)


def test_what_is_asked_for_is_done_at_once() -> None:
    for schedule in (Schedule(at_once=True, compiles=False), Schedule(at_once=True, compiles=True)):
        assert schedule.traces(0.0, 0.0)
        assert schedule.compiles_graph(1000, 0.0, 0.0) == schedule.compiles


@pytest.mark.parametrize(
    ("seconds", "left", "is_due"), [(1.9, 1000, False), (2.1, 1000, True), (2.1, 4, False), (10, 0.5, False)]
)
def test_otherwise_a_trace_waits_until_the_run_is_known_to_be_long(seconds: float, left: float, is_due: bool) -> None:
    assert Schedule(at_once=False, compiles=True).traces(seconds, left) == is_due


def test_a_large_graph_is_compiled_in_a_long_run_alone() -> None:
    schedule = Schedule(at_once=False, compiles=True)
    assert not schedule.compiles_graph(150, 10.0, 4.0)
    assert schedule.compiles_graph(150, 10.0, 6.0)
    assert not schedule.compiles_graph(2000, 10.0, 6.0)
    assert schedule.compiles_graph(2000, 10.0, 50.0)
    assert not Schedule(at_once=False, compiles=False).compiles_graph(1, 1e9, 1.0)
