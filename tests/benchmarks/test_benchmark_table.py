from __future__ import annotations

from typing import Any

from benchmarks.table import PAGE, table, updated


def test_the_page_holds_the_table_of_the_committed_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "run python -m benchmarks.table"


def test_a_row_names_the_best_and_what_each_ratio_is_to(compared: dict[str, Any]) -> None:
    lines = table(compared).splitlines()
    assert lines[2] == "| MLP | 128 | 0.80 | 1.20 (`compiled`) | 1.50 | 1.1, 1 | 2.00 (`Opacus-ghost`) | 1.67 |"
    assert max(map(len, lines[4:])) <= 120


def test_what_was_not_measured_is_left_open(report: dict[str, Any]) -> None:
    lines = table(report).splitlines()
    assert lines[2] == "| MLP | 128 | – | 1.50 (`BookKeeping`) | – | 1.5 | – | – |"
