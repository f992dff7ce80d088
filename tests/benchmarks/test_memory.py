from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.steps import memory
from benchmarks.steps.cell import Cell, Settings

SETTINGS = Settings(rounds=1, threads=1, device="cpu")


MEASURED = """
import torch
from benchmarks.steps import memory
from benchmarks.steps.cell import Cell
from benchmarks.steps.methods import METHODS

METHODS["holds"] = lambda model, inputs, targets: lambda: torch.ones(64 * 2**20, dtype=torch.uint8)
METHODS["idle"] = lambda model, inputs, targets: lambda: None
print(memory.growth(Cell("mlp", batch=2), "holds", "cpu"), memory.growth(Cell("mlp", batch=2), "idle", "cpu"))
"""


def test_the_peak_of_a_step_counts_memory_that_is_freed_later() -> None:
    """In a process of its own, because earlier tests may have chosen to keep freed memory."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    held, idle = map(float, done.stdout.split())
    assert held == pytest.approx(64 * 2**20, rel=0.1)
    assert idle < held / 10


def test_a_network_without_clipping_is_measured() -> None:
    assert memory.growth(Cell("lipschitz-dense", batch=8), "Clipless", "cpu") >= 0


@pytest.mark.slow
def test_a_fresh_process_measures_a_step() -> None:
    parts: list[float] = []
    rows = memory.peak_memory(Cell("mlp", batch=512), ["plain"], SETTINGS, parts.append)
    assert rows["plain"]["bytes"] > 4 * 136_074  # at least the gradients
    assert parts == [1]


@pytest.mark.parametrize(
    ("end", "message"),
    [("kill -9 $$", "memory ran out"), ("echo 'a trace\nError: no such thing' >&2; exit 1", "Error: no such thing")],
)
def test_a_process_that_ends_early_is_a_result(
    end: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    rows = memory.peak_memory(Cell("mlp", batch=2), ["plain"], SETTINGS, lambda part: None)
    assert message in rows["plain"]["error"]


def test_on_a_gpu_methods_are_measured_one_after_another_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def growth(cell: Cell, method: str, device: str, dtype: str) -> int:
        asked.append((method, device, dtype))
        if method == "nxBP":
            raise RuntimeError("no memory")
        return 17

    monkeypatch.setattr(memory, "growth", growth)
    settings = Settings(rounds=1, threads=1, device="cuda", dtype="bfloat16")
    rows = memory.peak_memory(Cell("mlp", batch=2), ["plain", "nxBP"], settings, lambda part: None)
    assert rows == {"plain": {"bytes": 17}, "nxBP": {"error": "RuntimeError: no memory"}}
    assert asked == [("plain", "cuda", "bfloat16"), ("nxBP", "cuda", "bfloat16")]
