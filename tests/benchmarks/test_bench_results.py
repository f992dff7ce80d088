"""Reports of measurements, their comparison, figures and page."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.steps import results
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.comparison import ahead, best_of, overhead, summary
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.methods import METHODS, OURS
from benchmarks.steps.precision import PRECISIONS
from benchmarks.steps.report import measure
from benchmarks.steps.results import page
from benchmarks.steps.step_time import step_times
from benchmarks.table import PAGE, table, updated

SETTINGS = Settings(rounds=2, threads=1, device="cpu")


def test_a_report_holds_hardware_seconds_and_ratios():
    experiment = EXPERIMENTS["targets"].only(["mlp"], ["BookKeeping"], [4], None)
    parts: list[float] = []
    report = list(measure("targets", experiment, SETTINGS, parts.append))[-1]
    assert (json.loads(json.dumps(report)), report["hardware"]["threads"]) == (report, 1)
    assert report["hardware"]["versions"]["torch"]
    [cell] = report["cells"]
    assert (cell["model"], cell["batch"], cell["target"]) == ("mlp", 4, None)
    plain, private = cell["methods"]["plain"], cell["methods"]["BookKeeping"]
    assert (plain["ratio"], private["ratio"]) == (1, private["seconds"] / plain["seconds"])
    assert (len(private["each"]), sum(parts)) == (2, pytest.approx(1))


def test_ratios_are_to_each_plain_training_that_was_measured(monkeypatch):
    rows = {"plain": {"seconds": 2.0}, "plain-compiled": {"seconds": 1.0}, "compiled": {"seconds": 3.0}}
    monkeypatch.setattr("benchmarks.steps.experiments.step_times", lambda *_: rows)
    experiment = EXPERIMENTS["targets"].only(["mlp"], None, None, None)
    first, _ = list(measure("targets", experiment, SETTINGS, lambda part: None))[-1]["cells"]
    assert (first["target"], first["target_compiled"]) == (1.1, 1.0)
    assert first["methods"]["plain"] == {"seconds": 2.0, "ratio": 1.0, "ratio_compiled": 2.0}
    assert first["methods"]["compiled"] == {"seconds": 3.0, "ratio": 1.5, "ratio_compiled": 3.0}


def test_the_precision_of_steps_is_that_of_autocast(monkeypatch, tmp_path, report):
    seen: list[bool] = []

    def method(*_: object) -> Callable[[], None]:
        return lambda: seen.append(torch.is_autocast_enabled("cpu"))

    monkeypatch.setitem(METHODS, "watched", method)
    for dtype in PRECISIONS:
        step_times(Cell("mlp", 2), ["watched"], Settings(1, 1, "cpu", dtype=dtype), lambda part: None)
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert {*seen} == {False, True}
    results.write(report | {"dtype": "bfloat16"}, tmp_path)
    assert "autocast to bfloat16" in (tmp_path / "bench.html").read_text()


def test_the_committed_results_can_be_read_and_drawn():
    committed = results.read(Path(__file__).parents[2] / "benchmarks" / "results")
    assert {report["experiment"] for report in committed} >= {"targets", "clipless"}
    assert "<svg" in results.page(committed)


def test_the_page_lists_a_failure_with_its_cells_and_says_which_plain_training_a_ratio_is_to(report, compared):
    assert "Elsewhere failed on MLP, batch 128; ResNet-18, 64 × 64, batch 4: MemoryError: 3 &lt; 4" in page([report])
    text = " ".join(re.sub(r"<[^>]*>", " ", page([compared])).split())
    assert "MLP, batch 128 2 ms 1.6 ms 1.1 × 1 × compiled 1.20 × 1.50 × compiled 2.4 ms 2.00 ×" in text
    assert "1.50 × 1.67 × Opacus ghost" in text


def test_the_best_of_noisette_is_held_against_the_quicker_plain_training(compared):
    [cell, _] = compared["cells"]
    assert best_of(cell, "seconds", OURS) == ("compiled", 0.0024)
    assert overhead(cell, "seconds") == pytest.approx(1.5)
    cell["methods"]["plain-compiled"] = {"error": "no compiler"}
    assert overhead(cell, "seconds") == pytest.approx(1.2)
    cell["methods"]["BookKeeping"] = {"seconds": 0.001}
    assert overhead(cell, "seconds") == pytest.approx(0.5)


def test_the_lead_is_over_the_best_mode_of_any_peer(compared):
    [cell, _] = compared["cells"]
    assert ahead(cell, "seconds") == ("Opacus-ghost", pytest.approx(4 / 2.4))
    cell["methods"]["fastDP-MixOpt"] = {"seconds": 0.003}
    assert ahead(cell, "seconds") == ("fastDP-MixOpt", pytest.approx(3 / 2.4))
    cell["methods"] = {name: row for name, row in cell["methods"].items() if name in ("plain", "compiled")}
    assert ahead(cell, "seconds") is None


def test_the_summary_is_a_geometric_mean_and_the_smallest_lead(compared):
    first, second = compared["cells"]
    second["methods"] = {**second["methods"], "compiled": {"seconds": 0.0006}}  # 0.375 of the quicker plain
    assert summary(compared) == [
        "The best of noisette against the quicker of plain eager and plain compiled training: 0.75 in the geometric "
        "mean of 2 rows (target: at most 1.1).",
        "The best peer takes at least 1.67 times as much as the best of noisette (Opacus ghost) in each of 2 rows "
        "(target: at least 1.5 on each).",
    ]
    assert first["methods"]["compiled"]["seconds"] == 0.0024


def test_the_page_holds_the_table_of_the_committed_results_whose_rows_name_the_best(compared):
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "run python -m benchmarks.table"
    lines = table(compared).splitlines()
    assert lines[2] == "| MLP | 128 | 0.80 | 1.20 (`compiled`) | 1.50 | 1.1, 1 | 2.00 (`Opacus-ghost`) | 1.67 |"
    assert max(map(len, lines[4:])) <= 120
