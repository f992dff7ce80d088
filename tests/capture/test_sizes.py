"""Which graph serves a call of so many rows, told by a captured function that only counts."""

from __future__ import annotations

import pytest

from noisette.capture.schedule import Schedule, schedule_of
from noisette.capture.sizes import CapturedSizes


class Counting:
    """A captured function of one size: no graph until it is traced, then as quick as the test says."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.is_due = self.is_traced = self.is_untried = False
        self.seconds, self.eager_seconds, self.operations = 0.0, float("inf"), 0
        self.total = 0.0

    @property
    def was_called(self) -> bool:
        return self.eager_seconds < float("inf")

    def spent(self, seconds: float, *, eagerly: bool) -> None:
        self.total += seconds
        if eagerly:
            self.eager_seconds = seconds

    def traced(self, seconds: float) -> None:
        self.is_traced, self.seconds = True, seconds

    def close(self) -> None: ...


SCHEDULE = Schedule(before_trace=2, repays_trace=10, repays_compiling=60, waits=False, keeps_quickest=True)


def sizes(still_to_come: float = 100.0, schedule: Schedule = SCHEDULE) -> CapturedSizes:
    made: CapturedSizes = CapturedSizes(Counting, schedule, lambda: still_to_come)  # pyright: ignore[reportArgumentType]
    return made


def test_nothing_is_traced_before_the_work_repays_it() -> None:
    of_a_run = sizes()
    for _ in range(3):
        assert of_a_run.choose(128) is None
        of_a_run.spent(128, 0.5, None)
    assert of_a_run.choose(128) is None  # 1.5 seconds
    of_a_run.spent(128, 0.6, None)
    assert of_a_run.choose(128) == (128, of_a_run.sizes[128])


def test_a_run_that_ends_soon_traces_nothing() -> None:
    of_a_run = sizes(still_to_come=0.5)
    of_a_run.choose(128)
    of_a_run.spent(128, 10.0, None)  # 5 more seconds to come
    assert of_a_run.choose(128) is None


def test_the_first_graph_has_the_most_rows_met_so_far_and_serves_fewer() -> None:
    of_a_run = sizes()
    for rows in (160, 128, 512):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 1.0, None)
    assert of_a_run.choose(128) == (160, of_a_run.sizes[160])  # and not 512, of which 128 is a quarter
    of_a_run.sizes[160].traced(0.1)
    for rows, served in ((128, True), (81, True), (80, False), (161, False)):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 1.0, None)
        chosen = of_a_run.choose(rows)
        assert (chosen is not None and chosen[0] == 160) == served, rows


def test_each_size_goes_to_what_was_quickest_for_it() -> None:
    of_a_run = sizes()
    for rows in (128, 160):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 1.0, None)
    of_a_run.sizes[160].traced(0.9)
    assert of_a_run.choose(128) == (160, of_a_run.sizes[160])
    of_a_run.sizes[128].traced(0.5)
    assert of_a_run.choose(128) == (128, of_a_run.sizes[128])
    of_a_run.sizes[128].seconds = of_a_run.sizes[160].seconds = 2.0  # slower than eager
    assert of_a_run.choose(128) is None
    of_a_run.sizes[160].is_untried, of_a_run.sizes[160].seconds = True, 0.0
    assert of_a_run.choose(128) == (160, of_a_run.sizes[160])


def test_work_counts_for_the_size_of_the_call_and_for_the_graph_that_did_it() -> None:
    of_a_run = sizes()
    for rows in (128, 160):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 1.0, None)
    of_a_run.spent(128, 0.25, 160)
    counted = {rows: of_size.total for rows, of_size in of_a_run.sizes.items()}  # pyright: ignore[reportAttributeAccessIssue]
    assert counted == {128: 1.25, 160: 1.25}
    assert of_a_run.sizes[128].eager_seconds == 1.0


def test_a_problem_at_one_size_is_one_at_all() -> None:
    of_a_run = sizes()
    for rows in (128, 160):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 10.0, None)
    of_a_run.sizes[160].problem = "it branches on values"
    assert of_a_run.problem == "it branches on values"
    assert of_a_run.choose(128) is None


@pytest.mark.parametrize("capture", ["graph", "compiled"])
def test_a_way_that_was_asked_for_is_taken_at_each_size_from_its_second_call_on(capture: str) -> None:
    schedule = schedule_of(capture)
    assert schedule is not None
    of_a_run = sizes(still_to_come=0.0, schedule=schedule)
    assert of_a_run.choose(128) is None
    of_a_run.spent(128, 0.001, None)
    assert of_a_run.choose(128) == (128, of_a_run.sizes[128])
    assert of_a_run.choose(160) is None
    of_a_run.sizes[128].traced(0.1)
    for rows in (112, 64, 160):
        of_a_run.choose(rows)
        of_a_run.spent(rows, 0.001, None)
    assert of_a_run.choose(112) == (128, of_a_run.sizes[128])  # nothing more is compiled
    assert of_a_run.choose(64) == (64, of_a_run.sizes[64])
    assert of_a_run.choose(160) == (160, of_a_run.sizes[160])
