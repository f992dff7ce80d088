"""Figures and tables of the speed of private steps, made from invented measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from papers.lee_kifer_2020.figures import FIGURES
from papers.lee_kifer_2020.parts import PAPER
from papers.lee_kifer_2020.runs import Job, Run, Setting, captured_gain, read
from papers.run_file import RUNS
from papers.section import Section

MLP = {"plain": 0.001, "nxBP": 0.1, "MultiLoss": 0.05, "ReweightGP": 0.004, "captured": 0.0025, "compiled": 0.002}


def finished(
    experiment: str,
    model: str,
    batch: int,
    amounts: Mapping[str, float],
    image: int | None = None,
    unit: str = "seconds",
) -> Run:
    """A measurement with these seconds or bytes; a method with 0 failed."""
    setting = Setting(experiment, model, batch, image, tuple(amounts), threads=2)
    rows: dict[str, Any] = {name: {unit: amount, "each": [amount] * 3} for name, amount in amounts.items() if amount}
    rows |= {name: {"error": "MemoryError: no"} for name, amount in amounts.items() if not amount}
    named = {"model": model, "title": setting.cell.title, "batch": batch, "image": image, "target": None}
    return Run(setting, named | {"methods": rows}, "A processor")


def claims(section: Section, figure: str) -> dict[str, tuple[str, ...]]:
    """The rows of a figure or table in the summary: paper, ours, captured, repetitions, differs, by quantity."""
    start = next(k for k, row in enumerate(section.rows) if row[0].endswith(f" {figure}"))
    end = next((k for k in range(start + 1, len(section.rows)) if section.rows[k][0]), len(section.rows))
    return {row[1]: row[2:] for row in section.rows[start:end]}


def summary(runs: list[Run]) -> Section:
    return PAPER.parts["table-summary"].section(runs)


def test_gains_are_of_reweighting_and_of_the_quicker_of_captured_and_compiled() -> None:
    run = finished("fig7", "mlp", 128, MLP)
    assert captured_gain(run.measured) == pytest.approx(50)
    row = claims(summary([run]), "7")["time of nxBP to ours, 2 hidden layers"]
    assert row[1:4] == ("25.0", "50.0", "3, 1 of 4 networks and sizes")
    [line] = [row for row in FIGURES[2].section([run]).rows if row[0] == "MLP"]
    assert line[3:] == ("1 ms", "100 ms", "50 ms", "4 ms", "", "2.5 ms", "2 ms", "94", "25.0", "50.0")


def test_a_cell_is_measured_by_the_benchmark_and_read_again(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    setting = Setting("fig7", "mlp", 2, None, ("plain", "nxBP", "ReweightGP", "captured"), threads, rounds=1, limit=0.1)
    shares: list[float] = []
    Job(setting, 1.0).make({}, tmp_path / RUNS, lambda share, accuracy: shares.append(share))
    [run] = read(tmp_path / RUNS)
    assert run.setting == setting
    assert run.machine
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert all(row["seconds"] > 0 for row in run.measured["methods"].values())
    assert captured_gain(run.measured)
