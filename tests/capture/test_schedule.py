"""The values of ``capture``."""

from __future__ import annotations

import pytest

from noisette.capture.schedule import SCHEDULES, schedule_of


def test_each_value_has_its_schedule() -> None:
    assert schedule_of("eager") is None
    auto, graph, compiled = (schedule_of(name) for name in ("auto", "graph", "compiled"))
    assert auto is not None
    assert graph is not None
    assert compiled is not None
    assert auto.keeps_quickest
    assert not auto.waits
    assert auto.before_trace > 0
    assert graph.repays_compiling is None
    assert (compiled.repays_compiling, compiled.waits, compiled.keeps_quickest) == (0, True, False)


@pytest.mark.parametrize("name", ["yes", "", "Auto"])
def test_other_values_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose 'auto', 'eager', 'graph' or 'compiled'"):
        schedule_of(name)
    assert name not in SCHEDULES
