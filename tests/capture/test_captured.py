"""One captured step: which graph serves a call, compared with the step itself, timed, and given up where it differs."""

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from noisette.capture import captured as module
from noisette.capture.captured import Captured, CaptureWarning, Schedule, relative_difference, schedule_of, sketch
from noisette.capture.graph import Function, Graph
from noisette.capture.step import is_real, padded, padded_size

X = torch.arange(6, dtype=torch.float64).view(3, 2)
AUTO = Schedule(at_once=False, compiles=False)


class Scaled:
    """The step: a sum, times a number that Python code knows; with norms and a flag as a private step has."""

    def __init__(self) -> None:
        self.scale, self.calls, self.is_finite = 2.0, 0, True

    def __call__(self, x: Tensor) -> list[Tensor]:
        self.calls += 1
        return [self.scale * x.sum(0), x.norm(dim=1), x.isfinite().all() & self.is_finite]


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def made(schedule: Schedule | None = None) -> Captured:
    schedule = schedule or Schedule(at_once=True, compiles=False)
    captured = Captured(schedule, {torch.float64})
    captured.add_time(3, 1.0, None)
    return captured


def call(captured: Captured, function: Function, x: Tensor) -> Sequence[Tensor] | None:
    return captured(len(x), function, [x], {}, 1.0)


def in_place_of(captured: Captured, *graphs: module._Timed) -> None:
    captured._sizes[3].graphs = list(graphs)


class Replaced(Graph):
    def __init__(self, function: Function) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "operations", 1)

    def __call__(self, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        return self.function(*inputs)  # pyright: ignore[reportAttributeAccessIssue]


def test_calls_are_compared_at_powers_of_two_and_every_so_many() -> None:
    function, captured = Scaled(), made()
    compared = []
    for k in range(1, 520):
        before = function.calls
        torch.testing.assert_close(call(captured, function, X + k)[0], 2 * (X + k).sum(0))
        if function.calls > before:
            compared.append(k)
    assert compared == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("changed_at", [2, 3, 9])
def test_a_difference_is_met_at_the_next_comparison_and_gives_the_graph_up(changed_at: int) -> None:
    function, captured = Scaled(), made()
    for k in range(1, {2: 2, 3: 4, 9: 16}[changed_at]):
        function.scale = 2.1 if k >= changed_at else 2.0
        call(captured, function, X)
    assert captured.problem is None
    function.scale = 2.1
    with pytest.warns(CaptureWarning, match=r"differ by 0.05 of their norm"):
        outputs = call(captured, function, X)
    torch.testing.assert_close(outputs[0], 2.1 * X.sum(0))  # the step's own
    assert captured.rows_for(3, 1.0) is None
    assert captured.operations == 0


def test_the_quickest_graph_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    function, captured = Scaled(), made(AUTO)
    taken: list[float] = []

    def timed(seconds: float) -> module._Timed:
        def compute(*inputs: Tensor) -> list[Tensor]:
            clock.now += seconds
            taken.append(seconds)
            return function(*inputs)

        return module._Timed(Replaced(compute))

    in_place_of(captured, timed(3.0), timed(1.0))
    for _ in range(40):
        call(captured, function, X)
    assert (captured._sizes[3].quickest.median, set(taken[-20:])) == (1.0, {1.0})
    assert taken.count(3.0) <= 8


def test_what_cannot_be_traced_is_left_to_the_caller() -> None:
    def branches(x: Tensor) -> list[Tensor]:
        return [x.sum(0) if float(x.sum()) > 0 else x[0], x.norm(dim=1), x.isfinite().all()]

    captured = made()
    with pytest.warns(CaptureWarning, match="the step is not captured"):
        assert call(captured, branches, X) is None
    assert captured.problem is not None


def traced(captured: Captured, rows: int, seconds: float) -> None:
    captured._sizes[rows].graphs = [module._Timed(Replaced(Scaled()), seconds=[seconds] * 3)]


def test_a_graph_serves_fewer_rows_down_to_half_of_its_own() -> None:
    captured = Captured(AUTO, {torch.float64})
    captured.add_time(160, 1.0, None)
    captured.add_time(512, 1.0, None)
    assert captured.rows_for(160, 100.0) == 160  # together these calls are worth a graph
    traced(captured, 160, 0.05)
    for rows, served in ((128, True), (81, True), (80, False), (161, False)):
        captured.add_time(rows, 0.2, None)
        assert (captured.rows_for(rows, 5.0) == 160) == served, rows


def test_each_size_goes_to_what_was_quickest_for_it() -> None:
    captured = Captured(AUTO, {torch.float64})
    for rows in (128, 160):
        captured.add_time(rows, 1.0, None)
    traced(captured, 160, 0.9)
    assert captured.rows_for(128, 100.0) == 160
    traced(captured, 128, 0.5)
    assert captured.rows_for(128, 100.0) == 128
    traced(captured, 128, 2.0)  # slower than eager
    traced(captured, 160, 2.0)
    assert captured.rows_for(128, 100.0) is None
    captured._sizes[160].graphs[0].seconds = []  # not tried yet
    assert captured.rows_for(128, 100.0) == 160


@pytest.mark.parametrize("capture", ["graph", "compiled"])
def test_a_graph_that_was_asked_for_is_taken_at_each_size_from_its_second_call_on(capture: str) -> None:
    captured = Captured(schedule_of(capture), {torch.float64})
    assert captured.rows_for(128, 0.0) is None
    captured.add_time(128, 0.001, None)
    assert captured.rows_for(128, 0.0) == 128
    traced(captured, 128, 0.1)
    assert captured.rows_for(160, 0.0) is None
    for rows in (112, 64, 160):
        captured.add_time(rows, 0.001, None)
    assert captured.rows_for(112, 0.0) == 128  # nothing more is compiled
    assert (captured.rows_for(64, 0.0), captured.rows_for(160, 0.0)) == (64, 160)
    assert captured.rows_for(112, 1e6) == 112  # a graph of its own is repaid: a quarter of an hour is to come


def test_a_graph_is_compiled_once_it_is_repaid(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compiled(self: Graph, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]) -> Graph:
        asked.append(self.operations)
        return self

    monkeypatch.setattr(Graph, "compiled", compiled)
    function, captured = Scaled(), Captured(Schedule(at_once=False, compiles=True), {torch.float64})
    captured.add_time(3, 5.0, None)
    for left, times in ((4.0, 0), (40.0, 1), (40.0, 1)):
        captured(3, function, [X], {}, left)
        assert len(asked) == times
    assert [timed.is_compiled for timed in captured._sizes[3].graphs] == [False, True]


def test_the_difference_is_a_share_of_the_norm() -> None:
    one, other = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], [torch.tensor([3.0, 0.5]), torch.tensor([4.0])]
    assert math.isclose(relative_difference(other, one), 0.1)
    assert relative_difference(one, one) == 0
    nan, zero = [torch.tensor([math.nan])], [torch.zeros(1)]
    assert not relative_difference(nan, other[1:]) <= 1
    assert not relative_difference(other[1:], nan) <= 1
    assert (relative_difference(other[1:], zero), relative_difference(zero, zero)) == (math.inf, 0)


@pytest.mark.parametrize("rows", [slice(None), slice(7), slice(None, None, 4096)], ids=["all", "few", "one column"])
def test_a_sketch_of_many_numbers_differs_as_they_do(rows: slice) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(3_000_000)
    others = numbers.clone()
    others[rows] += 0.01 * torch.randn(len(others[rows]))
    true = relative_difference([others], [numbers])
    assert relative_difference([sketch(others)], [sketch(numbers)]) == pytest.approx(true, rel=0.4)


def test_a_comparison_draws_what_the_step_alone_would_draw() -> None:
    def drops(x: Tensor) -> list[Tensor]:
        return [(x * torch.rand(3, 2, dtype=torch.float64)).sum(0), x.norm(dim=1), x.isfinite().all()]

    torch.manual_seed(0)
    expected = [drops(X)[0] for _ in range(5)]
    torch.manual_seed(0)
    captured = made()
    for each in expected:
        torch.testing.assert_close(call(captured, drops, X)[0], each)


def test_what_is_asked_for_is_done_at_once_and_otherwise_in_long_runs_alone() -> None:
    assert schedule_of("eager") is None
    for compiles in (False, True):
        schedule = Schedule(at_once=True, compiles=compiles)
        assert schedule.traces(1000, 0.0, 0.0, 0)
        assert schedule.compiles_graph(1000, 0.0, 0.0) == compiles
    with pytest.raises(ValueError, match="choose one of 'auto', 'eager', 'graph', 'compiled'"):
        schedule_of("fast")
    schedule = Schedule(at_once=False, compiles=True)
    for seconds, left, is_due in ((1.9, 1000, False), (2.1, 1000, True), (2.1, 3, False), (10, 0.5, False)):
        assert schedule.traces(4, seconds, left, 0) == is_due
    assert not schedule.traces(2000, 2.1, 100, 0)  # a trace of two thousand weights takes half a minute
    for operations, left, is_due in ((150, 4.0, False), (150, 6.0, True), (2000, 6.0, False), (2000, 50.0, True)):
        assert schedule.compiles_graph(operations, 10.0, left) == is_due
    assert not AUTO.compiles_graph(1, 1e9, 1.0)


def test_at_most_an_eighth_is_added_and_eight_sizes_lie_between_powers_of_two() -> None:
    sizes = {count: padded_size(count) for count in range(1, 5000)}
    assert all(count <= size <= max(count, 1.125 * count + 1) for count, size in sizes.items())
    assert all(padded_size(size) == size for size in sizes.values())
    assert len({size for count, size in sizes.items() if 1024 < count <= 2048}) == 8


def test_repeated_rows_are_the_first_and_are_told_from_real_ones() -> None:
    x, y = torch.randn(9, 3), torch.arange(9)
    wide, labels = padded([x, y], 12)
    assert torch.equal(wide[:9], x)
    assert torch.equal(wide[9:], x[:1].expand(3, 3))
    assert labels.tolist() == [*range(9), 0, 0, 0]
    assert is_real(9, 12, x.device).tolist() == [True] * 9 + [False] * 3
    assert padded([x, y], 9)[0] is x
