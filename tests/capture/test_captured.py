"""One captured function: compared with itself, timed, and given up where it differs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from noisette.capture import captured as module
from noisette.capture.captured import Captured
from noisette.capture.schedule import Schedule

X = torch.arange(6, dtype=torch.float64).view(3, 2)


class Scaled:
    """The function: a sum, times a number that Python code knows; with norms and a flag as a private step has."""

    def __init__(self) -> None:
        self.scale, self.calls, self.is_finite = 2.0, 0, True

    def __call__(self, x: Tensor) -> list[Tensor]:
        self.calls += 1
        return [self.scale * x.sum(0), x.norm(dim=1), x.isfinite().all() & self.is_finite]


class Clock:
    """Seconds that pass only where the test says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def captured_with(warnings: list[str], *, keeps_quickest: bool = False) -> Captured:
    schedule = Schedule(0, 0, None, waits=False, keeps_quickest=keeps_quickest)
    made = Captured(schedule, 1e-9, lambda: 1.0, lambda: (), warnings.append)
    made.spent(1.0, eagerly=True)
    return made


def constants(graph: module.Graph) -> Sequence[Tensor]:
    return graph.constants


def test_calls_are_compared_at_powers_of_two_and_every_so_many() -> None:
    function, captured = Scaled(), captured_with([])
    compared = []
    for k in range(1, 520):
        before = function.calls
        outputs = captured(function, constants, [X + k])
        assert outputs is not None
        torch.testing.assert_close(outputs[0], 2 * (X + k).sum(0))
        if function.calls > before:
            compared.append(k)
    assert compared == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("changed_at", [2, 3, 9])
def test_a_difference_is_met_at_the_next_comparison_and_gives_the_graph_up(changed_at: int) -> None:
    warnings: list[str] = []
    function, captured = Scaled(), captured_with(warnings)
    for k in range(1, 17):
        if k == changed_at:
            function.scale = 2.1
        outputs = captured(function, constants, [X])
        if captured.problem is not None:
            break
    assert k == {2: 2, 3: 4, 9: 16}[changed_at]
    assert outputs is not None
    torch.testing.assert_close(outputs[0], 2.1 * X.sum(0))  # the function's own
    assert len(warnings) == 1
    assert "differ by 0.05 of their norm" in warnings[0]


def test_nothing_is_compared_where_the_result_is_dropped() -> None:
    function, captured = Scaled(), captured_with([])
    function.is_finite = False
    outputs = captured(function, constants, [X])
    function.scale = 3.0
    outputs = captured(function, constants, [X])
    assert outputs is not None
    assert not outputs[-1]
    assert captured.problem is None


def test_the_quickest_way_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    function, captured = Scaled(), captured_with([], keeps_quickest=True)
    captured(function, constants, [X])
    taken: list[str] = []

    def way(name: str, seconds: float) -> module._Way:
        def call(constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
            clock.now += seconds
            taken.append(name)
            return function(*inputs)

        return module._Way(name, call)

    captured._ways = [way("slow", 3.0), way("quick", 1.0)]
    assert captured.is_untried
    for _ in range(40):
        captured(function, constants, [X])
    assert not captured.is_untried
    assert captured.seconds == 1.0
    assert set(taken[-20:]) == {"quick"}
    assert taken.count("slow") <= 8


def test_what_cannot_be_traced_is_left_to_the_caller() -> None:
    warnings: list[str] = []

    def branches(x: Tensor) -> list[Tensor]:
        return [x.sum(0) if float(x.sum()) > 0 else x[0], x.norm(dim=1), x.isfinite().all()]

    captured = captured_with(warnings)
    assert captured(branches, constants, [X]) is None
    assert captured.problem is not None
    assert len(warnings) == 1


def test_an_error_of_the_graph_is_no_error_of_the_step() -> None:
    warnings: list[str] = []
    function, captured = Scaled(), captured_with(warnings)
    captured(function, constants, [X])

    def fails(constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        raise RuntimeError("no such instruction")

    captured._ways = [module._Way("compiled", fails)]
    assert captured(function, constants, [X]) is None
    assert "no such instruction" in warnings[0]


def test_the_time_of_a_call_is_known_when_the_device_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has work for two seconds before a call, and for three after it."""
    clock, work = Clock(), [0.0]

    def wait_for(device: torch.device) -> None:
        clock.now, work[0] = clock.now + work[0], 0.0

    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "wait_for", wait_for)
    function, captured = Scaled(), captured_with([])
    assert captured(function, constants, [X]) is not None
    [way] = captured._ways
    inner = way.call

    def on_gpu(given: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        work[0] += 3.0
        return inner(given, inputs)

    way.call = on_gpu
    for _ in range(12):
        work[0] = 2.0
        captured(function, constants, [X])
    assert way.seconds == [3.0] * module._SAMPLES
    assert work[0] == 2.0 + 3.0, "later calls do not wait"
