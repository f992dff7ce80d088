"""Time and memory of a step."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from benchmarks.steps import memory, step_time
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.memory import kibibytes, memory_limit
from benchmarks.steps.methods import METHODS
from benchmarks.steps.step_time import step_times

CELL = Cell("mlp", batch=2)
SETTINGS = Settings(rounds=3, threads=1, device="cpu")


def ignore(part: float) -> None: ...


@pytest.fixture
def method(monkeypatch):

    def add(name: str, step: Callable[[], object]) -> None:
        monkeypatch.setitem(METHODS, name, lambda model, data: step)

    return add


@pytest.fixture
def wait(monkeypatch):
    """Advances a simulated clock, which nothing else advances."""
    now = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(step_time, "time", SimpleNamespace(perf_counter=lambda: now))
    return pass_by


def test_methods_take_turns_and_each_comes_first_as_often(method, wait):
    taken: list[str] = []

    def step(name: str) -> None:
        taken.append(name)
        wait(1.0)

    method("a", lambda: step("a"))
    method("b", lambda: step("b"))
    step_times(CELL, ["a", "b"], SETTINGS, ignore)
    assert "".join(taken) == "aabb" + "ab" + "baabba"


def test_the_median_of_the_measured_turns_counts_and_warm_up_does_not(method, wait):
    waits = iter([32.0, 32.0, 16.0, 1.0, 4.0, 2.0])
    method("a", lambda: wait(next(waits)))
    assert step_times(CELL, ["a"], SETTINGS, ignore)["a"] == {"seconds": 2.0, "each": [1.0, 4.0, 2.0], "ready": 64.0}


def test_rounds_end_after_the_given_time_once_there_are_three(method, wait):
    method("a", lambda: wait(1.0))
    parts: list[float] = []
    settings = Settings(rounds=9, threads=1, device="cpu", seconds=4.5)
    assert step_times(CELL, ["a"], settings, parts.append)["a"]["each"] == [1.0] * 5
    assert sum(parts) == pytest.approx(1)
    late = Settings(rounds=9, threads=1, device="cpu", seconds=0.5)
    assert step_times(CELL, ["a"], late, ignore)["a"]["each"] == [1.0] * 3


def test_a_slow_method_is_measured_once(method, wait):
    waits = iter([64.0, 64.0, 32.0])
    method("slow", lambda: wait(next(waits)))
    method("quick", lambda: wait(0.5))
    rows = step_times(CELL, ["slow", "quick"], SETTINGS, ignore)
    assert rows["slow"] == {"seconds": 32.0, "each": [32.0], "ready": 128.0}
    assert rows["quick"] == {"seconds": 0.5, "each": [0.5] * 3, "ready": 1.0}


def test_a_method_that_fails_late_is_a_result_and_the_others_continue(method):
    taken: list[int] = []

    def fourth_time_unlucky() -> None:
        taken.append(1)
        if len(taken) == 4:
            raise RuntimeError("no more\nof this")

    method("a", fourth_time_unlucky)
    rows = step_times(CELL, ["a", "plain"], SETTINGS, ignore)
    assert (rows["a"], len(taken)) == ({"error": "RuntimeError: no more of this"}, 4)
    assert len(rows["plain"]["each"]) == 3


def test_the_memory_limit_applies_in_its_block_only():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit("cpu"):
        inside = resource.getrlimit(resource.RLIMIT_DATA)[0]
        assert 0 < inside < 2 * 1024 * kibibytes("meminfo", "MemTotal")
        with pytest.raises(RuntimeError, match="allocate"):
            torch.empty(inside, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


MEASURED = """
import torch
from benchmarks.steps import memory
from benchmarks.steps.cell import Cell
from benchmarks.steps.methods import METHODS

METHODS["holds"] = lambda model, data: lambda: torch.ones(64 * 2**20, dtype=torch.uint8)
METHODS["idle"] = lambda model, data: lambda: None
print(memory.growth(Cell("mlp", batch=2), "holds", "cpu"), memory.growth(Cell("mlp", batch=2), "idle", "cpu"))
"""


def test_the_peak_of_a_step_counts_memory_that_is_freed_later():
    """In a process of its own, because earlier tests may have chosen to keep freed memory."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    held, idle = map(float, done.stdout.split())
    assert held == pytest.approx(64 * 2**20, rel=0.1)
    assert idle < held / 10


@pytest.mark.slow
def test_a_fresh_process_measures_a_step():
    parts: list[float] = []
    rows = memory.peak_memory(Cell("mlp", batch=512), ["plain"], SETTINGS, parts.append)
    assert rows["plain"]["bytes"] > 4 * 136_074  # at least the gradients
    assert parts == [1]


@pytest.mark.parametrize(
    ("end", "message"),
    [("kill -9 $$", "memory ran out"), ("echo 'a trace\nError: no such thing' >&2; exit 1", "Error: no such thing")],
)
def test_a_process_that_ends_early_is_a_result(end, message, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    rows = memory.peak_memory(Cell("mlp", batch=2), ["plain"], SETTINGS, lambda part: None)
    assert message in rows["plain"]["error"]
