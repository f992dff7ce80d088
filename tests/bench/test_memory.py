from __future__ import annotations

from pathlib import Path

import pytest
import torch

from noisette.bench import memory
from noisette.bench.cell import Cell, Settings
from noisette.bench.methods import METHODS

SETTINGS = Settings(rounds=1, threads=1, device="cpu")


def test_the_peak_of_a_step_counts_memory_that_is_freed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 * 2**20
    monkeypatch.setitem(METHODS, "holds", lambda model, inputs, targets: lambda: torch.ones(size, dtype=torch.uint8))
    monkeypatch.setitem(METHODS, "idle", lambda model, inputs, targets: lambda: None)
    cell = Cell("mlp", batch=2)
    assert memory.growth(cell, "holds", "cpu") == pytest.approx(size, rel=0.1)
    assert memory.growth(cell, "idle", "cpu") < size / 10


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
