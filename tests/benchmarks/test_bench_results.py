from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.steps import results
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.methods import METHODS
from benchmarks.steps.precision import PRECISIONS
from benchmarks.steps.report import measure
from benchmarks.steps.step_time import step_times

MakeReport = Callable[..., dict[str, Any]]

SETTINGS = Settings(rounds=2, threads=1, device="cpu")


def test_a_report_holds_hardware_seconds_and_ratios() -> None:
    experiment = EXPERIMENTS["targets"].only(["mlp"], ["BookKeeping"], [4], None)
    parts: list[float] = []
    report = list(measure("targets", experiment, SETTINGS, parts.append))[-1]
    assert json.loads(json.dumps(report)) == report
    assert report["hardware"]["threads"] == 1
    assert report["hardware"]["versions"]["torch"]
    [cell] = report["cells"]
    assert (cell["model"], cell["batch"], cell["target"]) == ("mlp", 4, None)
    plain, private = cell["methods"]["plain"], cell["methods"]["BookKeeping"]
    assert plain["ratio"] == 1
    assert private["ratio"] == private["seconds"] / plain["seconds"]
    assert len(private["each"]) == 2
    assert sum(parts) == pytest.approx(1)


def test_ratios_are_to_each_plain_training_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"plain": {"seconds": 2.0}, "plain-compiled": {"seconds": 1.0}, "compiled": {"seconds": 3.0}}
    monkeypatch.setattr("benchmarks.steps.experiments.step_times", lambda *_: rows)
    experiment = EXPERIMENTS["targets"].only(["mlp"], None, None, None)
    first, _ = list(measure("targets", experiment, SETTINGS, lambda part: None))[-1]["cells"]
    assert (first["target"], first["target_compiled"]) == (1.1, 1.0)
    assert first["methods"]["plain"] == {"seconds": 2.0, "ratio": 1.0, "ratio_compiled": 2.0}
    assert first["methods"]["compiled"] == {"seconds": 3.0, "ratio": 1.5, "ratio_compiled": 3.0}


def test_there_is_a_report_after_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.steps.experiments.step_times", lambda *_: {"plain": {"seconds": 2.0}})
    reports = list(measure("fig5", EXPERIMENTS["fig5"], SETTINGS, lambda part: None))
    assert [len(report["cells"]) for report in reports] == [1, 2, 3, 4, 5]


def test_the_precision_of_steps_is_that_of_autocast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, a_report: MakeReport
) -> None:
    seen: list[bool] = []

    def method(*_: object) -> Callable[[], None]:
        return lambda: seen.append(torch.is_autocast_enabled("cpu"))

    monkeypatch.setitem(METHODS, "watched", method)
    for dtype in PRECISIONS:
        step_times(Cell("mlp", 2), ["watched"], Settings(1, 1, "cpu", dtype=dtype), lambda part: None)
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert {*seen} == {False, True}
    results.write(a_report("fig5", dtype="bfloat16"), tmp_path)
    assert "autocast to bfloat16" in (tmp_path / "bench.html").read_text()


def test_compiled_code_of_earlier_runs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def rows(*_: object) -> dict[str, dict[str, Any]]:
        seen.append(dict(os.environ))
        return {"plain": {"seconds": 2.0}}

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.setattr("benchmarks.steps.experiments.step_times", rows)
    experiment = EXPERIMENTS["targets"].only(["cnn"], ["nxBP"], None, None)
    list(measure("targets", experiment, SETTINGS, lambda part: None))
    list(measure("targets", experiment, SETTINGS, lambda part: None))
    folders = [environment["TORCHINDUCTOR_CACHE_DIR"] for environment in seen]
    assert len({*folders, "/mine"}) == 3
    assert all(folder.startswith(tempfile.gettempdir()) for folder in folders)
    assert seen[0]["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert not any(Path(folder).exists() for folder in folders)


def test_the_committed_results_can_be_read_and_drawn() -> None:
    committed = results.read(Path(__file__).parents[2] / "benchmarks" / "results")
    assert {report["experiment"] for report in committed} >= {"targets", "clipless"}
    assert "<svg" in results.page(committed)


def test_without_plain_training_there_are_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"plain": {"error": "no memory"}, "nxBP": {"seconds": 1.0, "each": [1.0]}}
    monkeypatch.setattr("benchmarks.steps.experiments.step_times", lambda *_: rows)
    experiment = EXPERIMENTS["targets"].only(["mlp"], ["nxBP"], [4], None)
    [report] = measure("targets", experiment, SETTINGS, lambda part: None)
    assert "ratio" not in report["cells"][0]["methods"]["nxBP"]


def test_each_experiment_has_its_files_and_the_page_shows_all(tmp_path: Path, a_report: MakeReport) -> None:
    results.write(a_report("fig5", title="Architectures"), tmp_path)
    results.write(a_report("targets"), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "fig5.json",
        "fig5.svg",
        "targets.json",
        "targets.svg",
        "bench.html",
    }
    assert results.read(tmp_path) == [a_report("targets"), a_report("fig5", title="Architectures")]
    page = (tmp_path / "bench.html").read_text()
    assert page.index("Time per step</h2>") < page.index("Architectures</h2>")


def test_a_stopped_write_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_report: MakeReport
) -> None:
    results.write(a_report("targets"), tmp_path)
    before = {file: file.read_text() for file in tmp_path.iterdir()}
    whole = Path.write_bytes

    def stopped(path: Path, content: bytes) -> None:
        whole(path, content[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", stopped)
    with pytest.raises(KeyboardInterrupt):
        results.write(a_report("targets", about="Something else."), tmp_path)
    assert {file: file.read_text() for file in tmp_path.iterdir()} == before
