"""The first table of a paper's page."""

from __future__ import annotations

from papers import summary
from papers.summary import Row


def test_a_row_has_the_printed_number_ours_how_often_and_what_differs() -> None:
    section = summary.section(
        [Row("figure 3", "accuracy", "90 %", ("91 %", ""), "3", "no distortion")], ours=("a", "b")
    )
    assert section.name == summary.NAME
    assert section.header == ("part", "quantity", "paper", "a", "b", "seeds", "differs")
    assert section.rows == (("figure 3", "accuracy", "90 %", "91 %", "", "3", "no distortion"),)


def test_what_was_not_run_is_said_and_has_no_seeds() -> None:
    [row] = summary.section([Row("table 1", "accuracy", "90 %", ("",), "3 seeds")]).rows
    assert row == ("table 1", "accuracy", "90 %", "not run", "", "")


def test_a_part_and_what_differs_are_not_repeated_below() -> None:
    rows = [
        Row("figure 3", "a", "1", ("1",), "3", "lots"),
        Row("figure 3", "b", "1", ("1",), "3", "lots"),
        Row("figure 3", "c", "1", ("1",), "3"),
        Row("figure 4", "d", "1", ("1",), "3", "lots"),
    ]
    shown = [(row[0], row[-1]) for row in summary.section(rows).rows]
    assert shown == [("figure 3", "lots"), ("", "the same"), ("", ""), ("figure 4", "lots")]
