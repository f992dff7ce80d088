from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from benchmarks.steps import step_time
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.memory import kibibytes, memory_limit
from benchmarks.steps.methods import METHODS
from benchmarks.steps.step_time import step_times

CELL = Cell("mlp", batch=2)
SETTINGS = Settings(rounds=3, threads=1, device="cpu")


def ignore(part: float) -> None: ...


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Adds a method of this name with this step."""

    def add(name: str, step: Callable[[], object]) -> None:
        monkeypatch.setitem(METHODS, name, lambda model, inputs, targets: step)

    return add


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances a simulated clock, which nothing else advances."""
    now = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(step_time, "time", SimpleNamespace(perf_counter=lambda: now))
    return pass_by


def test_methods_take_turns_and_each_comes_first_as_often(
    method: Callable[[str, Callable[[], None]], None], wait: Callable[[float], None]
) -> None:
    taken: list[str] = []

    def step(name: str) -> None:
        taken.append(name)
        wait(1.0)

    method("a", lambda: step("a"))
    method("b", lambda: step("b"))
    step_times(CELL, ["a", "b"], SETTINGS, ignore)
    assert "".join(taken) == "aabb" + "ab" + "baabba"


def test_the_median_of_the_measured_turns_counts_and_warm_up_does_not(
    method: Callable[[str, Callable[[], None]], None], wait: Callable[[float], None]
) -> None:
    waits = iter([32.0, 32.0, 16.0, 1.0, 4.0, 2.0])
    method("a", lambda: wait(next(waits)))
    row = step_times(CELL, ["a"], SETTINGS, ignore)["a"]
    assert row == {"seconds": 2.0, "each": [1.0, 4.0, 2.0], "ready": 64.0}


def test_what_is_done_before_the_first_steps_is_timed_apart(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    def compiled_when_made(*_: object) -> Callable[[], None]:
        wait(60.0)
        return lambda: wait(0.5)

    monkeypatch.setitem(METHODS, "a", compiled_when_made)
    row = step_times(CELL, ["a"], SETTINGS, ignore)["a"]
    assert row == {"seconds": 0.5, "each": [0.5] * 3, "ready": 61.0}


def test_short_steps_follow_each_other_in_a_turn(
    method: Callable[[str, Callable[[], None]], None], wait: Callable[[float], None]
) -> None:
    taken: list[str] = []

    def step(name: str, seconds: float) -> None:
        taken.append(name)
        wait(seconds)

    method("a", lambda: step("a", 1 / 64))
    method("b", lambda: step("b", 1.0))
    rows = step_times(CELL, ["a", "b"], SETTINGS, ignore)
    assert "".join(taken) == "aabb" + "ab" + "baaa" + "aaab" + "baaa"
    assert rows["a"]["each"] == [1 / 64] * 3


def test_rounds_end_after_the_given_time_once_there_are_three(
    method: Callable[[str, Callable[[], None]], None], wait: Callable[[float], None]
) -> None:
    method("a", lambda: wait(1.0))
    parts: list[float] = []
    settings = Settings(rounds=9, threads=1, device="cpu", seconds=4.5)
    assert step_times(CELL, ["a"], settings, parts.append)["a"]["each"] == [1.0] * 5
    assert sum(parts) == pytest.approx(1)
    late = Settings(rounds=9, threads=1, device="cpu", seconds=0.5)
    assert step_times(CELL, ["a"], late, ignore)["a"]["each"] == [1.0] * 3


def test_a_slow_method_is_measured_once(
    method: Callable[[str, Callable[[], None]], None], wait: Callable[[float], None]
) -> None:
    waits = iter([64.0, 64.0, 32.0])
    method("slow", lambda: wait(next(waits)))
    method("quick", lambda: wait(0.5))
    rows = step_times(CELL, ["slow", "quick"], SETTINGS, ignore)
    assert rows["slow"] == {"seconds": 32.0, "each": [32.0], "ready": 128.0}
    assert rows["quick"] == {"seconds": 0.5, "each": [0.5] * 3, "ready": 1.0}


def test_a_method_that_fails_late_is_a_result_and_the_others_continue(
    method: Callable[[str, Callable[[], None]], None],
) -> None:
    taken: list[int] = []

    def fourth_time_unlucky() -> None:
        taken.append(1)
        if len(taken) == 4:
            raise RuntimeError("no more\nof this")

    method("a", fourth_time_unlucky)
    rows = step_times(CELL, ["a", "plain"], SETTINGS, ignore)
    assert rows["a"] == {"error": "RuntimeError: no more of this"}
    assert len(taken) == 4
    assert len(rows["plain"]["each"]) == 3


def test_progress_adds_up_to_one_cell(method: Callable[[str, Callable[[], None]], None]) -> None:
    method("a", lambda: None)
    parts: list[float] = []
    step_times(CELL, ["a", "plain"], SETTINGS, parts.append)
    assert sum(parts) == pytest.approx(1)


def test_a_method_that_runs_out_of_memory_is_a_result(
    method: Callable[[str, Callable[[], None]], None],
) -> None:
    too_much = 2 * 1024 * kibibytes("meminfo", "MemTotal")
    method("greedy", lambda: torch.zeros(too_much, dtype=torch.uint8).sum())
    assert "error" in step_times(CELL, ["greedy"], SETTINGS, ignore)["greedy"]


def test_the_memory_limit_applies_in_its_block_only() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit("cpu"):
        inside = resource.getrlimit(resource.RLIMIT_DATA)[0]
        assert 0 < inside < 2 * 1024 * kibibytes("meminfo", "MemTotal")
        with pytest.raises(RuntimeError, match="allocate"):
            torch.empty(inside, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_on_a_gpu_the_growth_of_its_memory_is_a_result(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    held, most, waited = [100, 100], [100], [0]

    def step() -> None:
        most[0] = max(most[0], held[0] + 23)
        wait(1.0)

    def reset() -> None:
        most[0] = held[0]

    fake = {
        "synchronize": lambda device: waited.append(1),
        "reset_peak_memory_stats": reset,
        "max_memory_allocated": lambda: most[0],
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.cuda, name, function)
    timer = step_time._Timer(lambda: step, "cuda")
    timer.start()
    for _ in range(3):
        timer.measure()
    assert timer.row() == {"seconds": 1.0, "each": [1.0, 1.0], "ready": 2.0, "bytes": 23}
    assert sum(waited) == 8
