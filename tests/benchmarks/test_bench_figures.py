from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.steps.figures import _marker, _styles, figure
from benchmarks.steps.methods import METHODS
from noisette.training.report.figures import PAPER, standalone

MakeReport = Callable[..., dict[str, Any]]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_rows_name_each_cell_and_each_method(report: dict[str, Any]) -> None:
    shown = texts(figure(report))
    assert {"MLP, batch 128", "ResNet-18, 64 × 64, batch 4"} <= set(shown)
    assert {
        "plain eager",
        "noisette BookKeeping",
        "nxBP",
        "target to plain eager",
        "time per step, plain eager = 1",
    } <= set(shown)


def test_without_a_target_none_is_shown(report: dict[str, Any]) -> None:
    report["cells"] = report["cells"][1:]
    assert not any("target" in text for text in texts(figure(report)))


@pytest.mark.parametrize(
    ("axis", "shown"),
    [
        ("batch", {"MLP", "ResNet-18, 64 × 64", "128", "examples in a batch"}),
        ("image", {"ResNet-18, batch 4", "64", "image width in pixels"}),
        ("model", {"batch 128", "64 × 64, batch 4", "ResNet-18"}),
    ],
)
def test_lines_have_a_panel_for_what_their_axis_does_not_show(axis: str, shown: set[str], a_report: MakeReport) -> None:
    assert shown <= set(texts(figure(a_report("fig6", axis=axis))))


def test_a_method_looks_the_same_in_all_figures(a_report: MakeReport) -> None:
    full, part = a_report("fig5"), a_report("fig6")
    for report, methods in ((full, ("BookKeeping", "ReweightGP", "Elsewhere")), (part, ("ReweightGP",))):
        for cell in report["cells"]:
            cell["methods"] = dict.fromkeys(("plain", *methods), cell["methods"]["nxBP"])
    assert _styles(part) == {"ReweightGP": _styles(full)["ReweightGP"]}
    assert list(_styles(full)) == ["BookKeeping", "ReweightGP", "Elsewhere"]


def test_no_two_methods_look_the_same(a_report: MakeReport) -> None:
    report = a_report("fig5")
    for cell in report["cells"]:
        cell["methods"] = dict.fromkeys(METHODS, cell["methods"]["nxBP"])
    looks = [(style["marker"], style["color"]) for style in _styles(report).values()]
    assert len(set(looks)) == len(looks) == len(METHODS) - 1
    assert {_marker("compiled"), _marker("Opacus-ghost"), _marker("fastDP-ghost"), _marker("nxBP")} == set("os^x")


def test_an_experiment_in_which_everything_failed_is_drawn(report: dict[str, Any]) -> None:
    for cell in report["cells"]:
        cell["methods"] = {name: {"error": "no"} for name in cell["methods"]}
    figure(report)
    figure(report | {"axis": "batch"})


def test_a_figure_in_a_file_has_its_own_background(report: dict[str, Any]) -> None:
    alone = standalone(figure(report))
    ElementTree.fromstring(alone)
    assert "<style>" not in figure(report)
    assert "prefers-color-scheme: dark" in alone
    assert PAPER in alone
