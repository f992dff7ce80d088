from __future__ import annotations

from typing import Any

import pytest

from benchmarks.steps.comparison import ahead, best_of, overhead, summary
from benchmarks.steps.methods import OURS


def test_the_best_of_noisette_is_held_against_the_quicker_plain_training(compared: dict[str, Any]) -> None:
    [cell, _] = compared["cells"]
    assert best_of(cell, "seconds", OURS) == ("compiled", 0.0024)
    assert overhead(cell, "seconds") == pytest.approx(1.5)
    cell["methods"]["plain-compiled"] = {"error": "no compiler"}
    assert overhead(cell, "seconds") == pytest.approx(1.2)
    cell["methods"]["BookKeeping"] = {"seconds": 0.001}
    assert overhead(cell, "seconds") == pytest.approx(0.5)


def test_networks_without_clipping_and_the_loop_are_no_best_of_noisette(compared: dict[str, Any]) -> None:
    [cell, _] = compared["cells"]
    cell["methods"] |= {"Clipless": {"seconds": 0.001}, "nxBP": {"seconds": 0.001}}
    assert overhead(cell, "seconds") == pytest.approx(1.5)


def test_the_lead_is_over_the_best_mode_of_any_peer(compared: dict[str, Any]) -> None:
    [cell, _] = compared["cells"]
    assert ahead(cell, "seconds") == ("Opacus-ghost", pytest.approx(4 / 2.4))
    cell["methods"]["fastDP-MixOpt"] = {"seconds": 0.003}
    assert ahead(cell, "seconds") == ("fastDP-MixOpt", pytest.approx(3 / 2.4))
    cell["methods"] = {name: row for name, row in cell["methods"].items() if name in ("plain", "compiled")}
    assert ahead(cell, "seconds") is None


def test_the_summary_is_a_geometric_mean_and_the_smallest_lead(compared: dict[str, Any]) -> None:
    first, second = compared["cells"]
    second["methods"] = {**second["methods"], "compiled": {"seconds": 0.0006}}  # 0.375 of the quicker plain
    assert summary(compared) == [
        "The best of noisette against the quicker of plain eager and plain compiled training: 0.75 in the geometric "
        "mean of 2 rows (target: at most 1.1).",
        "The best peer takes at least 1.67 times as much as the best of noisette (Opacus ghost) in each of 2 rows "
        "(target: at least 1.5 on each).",
    ]
    assert first["methods"]["compiled"]["seconds"] == 0.0024


def test_an_older_file_is_held_against_plain_eager_training(report: dict[str, Any]) -> None:
    assert summary(report) == [
        "The best of noisette against plain eager training: 1.50 in the geometric mean of 2 rows (target: at most 1.1)."
    ]
    assert summary(report | {"cells": []}) == []


def test_of_memory_the_smaller_plain_training_counts(compared: dict[str, Any]) -> None:
    for cell in compared["cells"]:
        cell["methods"] = {name: {"bytes": row["seconds"]} for name, row in cell["methods"].items()}
        cell["target"] = None
    [mean, _] = summary(compared | {"unit": "bytes"})
    assert "the smaller of plain eager and plain compiled training: 1.50" in mean
    assert "target" not in mean
