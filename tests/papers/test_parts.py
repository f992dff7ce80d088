"""What every paper has: a first table, marks of what was not run, and commands of about an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from papers import summary
from papers.abadi_2016.figures import PAPER as ABADI
from papers.bethune_2024.parts import PAPER as BETHUNE
from papers.davody_2020.parts import PAPER as DAVODY
from papers.lee_kifer_2020.parts import PAPER as LEE_KIFER
from papers.paper import Asked, Paper
from papers.summary import Row


def test_a_row_has_the_printed_number_ours_how_often_and_what_differs() -> None:
    section = summary.section(
        [Row("figure 3", "accuracy", "90 %", ("91 %", ""), "3", "no distortion")], ours=("a", "b")
    )
    assert section.name == summary.NAME
    assert section.header == ("part", "quantity", "paper", "a", "b", "seeds", "differs")
    assert section.rows == (("figure 3", "accuracy", "90 %", "91 %", "", "3", "no distortion"),)


def test_a_part_and_what_differs_are_not_repeated_below() -> None:
    rows = [
        Row("figure 3", "a", "1", ("1",), "3", "lots"),
        Row("figure 3", "b", "1", ("1",), "3", "lots"),
        Row("figure 3", "c", "1", ("1",), "3"),
        Row("figure 4", "d", "1", ("1",), "3", "lots"),
    ]
    shown = [(row[0], row[-1]) for row in summary.section(rows).rows]
    assert shown == [("figure 3", "lots"), ("", "the same"), ("", ""), ("figure 4", "lots")]


PAPERS: list[Paper[Any]] = [ABADI, DAVODY, LEE_KIFER, BETHUNE]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_what_was_not_run_is_said_and_drawn_without(
    paper: Paper[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert next(iter(paper.parts)) == summary.NAME
    for name, part in paper.parts.items():
        section = part.section([])
        assert all(len(row) == len(section.header) for row in section.rows)
        assert (paper is ABADI and name != "figure-3") or "not run" in {cell for row in section.rows for cell in row}
        if section.figure:
            ElementTree.fromstring(section.figure)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_a_default_command_takes_an_hour_or_so_for_each_seed(paper: Paper[Any]) -> None:
    for part in paper.parts.values():
        jobs = part.missing(Asked(part.seeds, weights="w" if "weights" in part.options else None), [])
        assert sum(job.seconds for job in jobs) / max(1, len(part.seeds)) < 2 * 3600
