from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from benchmarks.steps.results import page

MakeReport = Callable[..., dict[str, Any]]

BEST, PEER = "noisette’s best to better plain", "best peer to noisette’s best"


class Outline(HTMLParser):
    """The elements of a page and the text of its table cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.cells: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.tags[-1] in ("td", "th", "small"):
            self.cells[-1] = " ".join([*self.cells[-1].split(), *data.split()])


def test_it_needs_nothing_but_itself(report: dict[str, Any], a_report: MakeReport) -> None:
    html = page([report, a_report("fig6", axis="batch")])
    outline = Outline(html)
    assert not {"script", "link", "iframe", "img", "object", "base"} & set(outline.tags)
    assert all(address.startswith("#") for address in outline.addresses)
    assert outline.tags.count("svg") == 2
    assert html.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in html


def test_the_table_of_an_older_file_holds_times_ratios_and_targets(report: dict[str, Any]) -> None:
    cells = Outline(page([report])).cells
    assert cells[:7] == ["model", "plain eager", "target", "noisette BookKeeping", "nxBP", "Elsewhere", BEST]
    assert cells[7:14] == ["MLP, batch 128", "2 ms", "1.5 ×", "1.50 × 3 ms", "30.00 × 60 ms", "failed", "1.50 ×"]
    assert "Seconds to be ready" not in page([report])


def test_ratios_say_which_plain_training_they_are_to(compared: dict[str, Any]) -> None:
    cells = Outline(page([compared])).cells
    shown = ["plain eager", "plain compiled", "target", "noisette compiled", "Opacus ghost", BEST, PEER]
    assert cells[:8] == ["model", *shown]
    row = ["2 ms", "1.6 ms", "1.1 × 1 × compiled", "1.20 × 1.50 × compiled 2.4 ms", "2.00 × 2.50 × compiled 4 ms"]
    assert cells[8:16] == ["MLP, batch 128", *row, "1.50 ×", "1.67 × Opacus ghost"]


def test_seconds_to_be_ready_have_a_table_of_their_own(compared: dict[str, Any]) -> None:
    cells = Outline(page([compared])).cells
    table = cells[24:]
    assert table[:5] == ["model", "plain eager", "plain compiled", "noisette compiled", "Opacus ghost"]
    assert table[5:10] == ["MLP, batch 128", "0.1", "12.0", "21.0", "0.2"]


def test_the_whole_comparison_is_two_sentences(compared: dict[str, Any]) -> None:
    html = " ".join(page([compared]).split())
    mean = "plain eager and plain compiled training: 1.50 in the geometric mean of 2 rows (target: at most 1.1)"
    assert mean in html
    assert "takes at least 1.67 times as much as the best of noisette (Opacus ghost) in each of 2 rows" in html


def test_a_row_of_measured_rounds_says_how_many(compared: dict[str, Any]) -> None:
    assert "median of 1 to 3 rounds" in page([compared])
    for cell in compared["cells"]:
        for row in cell["methods"].values():
            row["each"] = [0.1] * 3
    assert "median of 3 rounds" in page([compared])


def test_the_lowest_private_ratio_is_bold(report: dict[str, Any]) -> None:
    html = page([report])
    assert html.count('class="best"') == 2
    assert '<td class="best">1.50 ×' in html


def test_a_failure_is_listed_with_its_cells_and_message(report: dict[str, Any]) -> None:
    assert "Elsewhere failed on MLP, batch 128; ResNet-18, 64 × 64, batch 4: MemoryError: 3 &lt; 4" in page([report])


def test_the_machine_is_named(report: dict[str, Any]) -> None:
    html = page([report])
    assert "A processor, 2 threads, median of 1 to 3 rounds, Python 3.12, torch 2.10</p>" in html


def test_bytes_are_shown_where_memory_was_measured(report: dict[str, Any]) -> None:
    rows = {"plain": {"bytes": 2**20, "ratio": 1.0}, "nxBP": {"bytes": 2**21, "ratio": 2.0}}
    cells = [{**report["cells"][0], "methods": rows, "target": None}]
    shown = Outline(page([report | {"unit": "bytes", "cells": cells}])).cells
    assert shown == ["model", "plain eager", "nxBP", "MLP, batch 128", "1.0 MiB", "2.00 × 2.0 MiB"]
