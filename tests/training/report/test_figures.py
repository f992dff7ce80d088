"""Figures of runs and of commands: what they show, their form as part of a page and as a file."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as Xml

import pytest

from noisette.training.report.facts import Facts
from noisette.training.report.figures import (
    BLUE,
    FIGURE_CSS,
    INK,
    PAPER,
    Line,
    Panel,
    as_png_file,
    as_svg,
    run_panels,
    standalone,
)

SVG = "{http://www.w3.org/2000/svg}"
ADDRESSES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def panel(*lines: Line, budget: float | None = None, linear: bool = False) -> Panel:
    return Panel("ε by noise", "noise multiplier", "ε", lines, budget, linear=linear)


def texts(figure: str) -> dict[str, float]:
    """Every text with its height, in units of the figure."""
    places = {}
    for element in Xml.fromstring(figure).iter(f"{SVG}text"):
        moved = re.search(r"translate\([-\d.]+ ([-\d.]+)\)", element.get("transform", ""))
        text = "".join(element.itertext()).strip()
        places[text] = float(moved[1]) if moved else float(element.get("y", "nan"))
    return places


def of_run(facts: Facts) -> list[str]:
    course, _ = run_panels(facts)
    return [as_svg([panel]) for panel, _ in course]


def test_lines_axes_and_budget_are_named() -> None:
    shown = texts(as_svg([panel(Line("batch 256", [1, 2, 4], [9, 3, 1]), budget=2.5)]))
    assert {"ε by noise; – –  budget 2.5", "noise multiplier", "ε", "batch 256"} <= set(shown)


def test_a_figure_has_a_name_and_a_description_for_who_cannot_see_it() -> None:
    root = Xml.fromstring(as_svg([panel(Line("batch <1>", [1, 2, 4], [9, 3, 1]))]))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "ε by noise"
    assert root.findtext(f"{SVG}desc") == "ε against noise multiplier; batch <1>: from 9 at 1 to 1 at 4"


@pytest.mark.parametrize("linear", [False, True])
def test_names_stand_apart_and_in_the_order_of_their_lines(linear: bool) -> None:
    lines = [Line(f"line {k}", [1, 10], [1, 5 * (1 + 1e-4 * k)]) for k in range(6)]
    shown = texts(as_svg([panel(*lines, linear=linear)]))
    heights = [height for name, height in shown.items() if name.startswith("line")]
    steps = [below - above for below, above in pairwise(heights)]  # SVG counts downwards
    assert min(steps) > 9  # the height of the letters
    assert min(heights) > shown["ε by noise"] + 9


@pytest.mark.parametrize("odd", [0.0, math.inf])
def test_what_a_log_scale_cannot_show_is_left_out(odd: float) -> None:
    lines = [Line("whole", [1, 2], [3, 4]), Line("half", [1, 2], [5, odd]), Line("none", [1], [odd])]
    shown = set(texts(as_svg([panel(*lines)])))
    assert {"whole", "half"} <= shown
    assert "none" not in shown


def test_panels_stand_side_by_side() -> None:
    one, three = (Xml.fromstring(as_svg([panel(Line("a", [1, 2], [1, 2]))] * n)) for n in (1, 3))
    width, height = (float(three.get("viewBox", "").split()[k]) for k in (2, 3))
    assert width == pytest.approx(3 * float(one.get("viewBox", "").split()[2]))
    assert height == float(one.get("viewBox", "").split()[3])


def test_a_file_has_its_own_background_and_colours_and_a_part_of_a_page_has_not() -> None:
    part = as_svg([panel(Line("a", [1, 2], [1, 2], BLUE, 0.5, "--"))])
    assert "<style" not in part
    assert PAPER not in part
    file = standalone(part)
    Xml.fromstring(file)
    assert PAPER in file
    assert FIGURE_CSS in file
    assert as_png_file([panel(Line("a", [1, 2], [1, 2]))]).startswith(b"\x89PNG")


def test_the_style_sheet_finds_every_colour_of_a_figure() -> None:
    part = as_svg([panel(Line("a", [1, 2], [1, 2], BLUE))])
    for colour in (BLUE, INK):
        assert f"stroke: {colour}" in part
        assert f'[style*="stroke: {colour}"]' in FIGURE_CSS
    styled = [e.get("style", "") for e in Xml.fromstring(part).iter()]
    used = {colour for style in styled for colour in re.findall(r"(?:fill|stroke): (#\w{6})", style)}
    assert all(colour in FIGURE_CSS for colour in used), used


def test_a_single_point_is_drawn_as_a_mark() -> None:
    assert "<use" in as_svg([panel(Line("a", [1], [2]))])


def test_the_course_of_a_run_has_accuracy_and_cost(facts: Facts) -> None:
    accuracy, epsilon = (set(texts(figure)) for figure in of_run(facts))
    assert {"ε spent", "test accuracy (%)", "93.1 %"} <= accuracy
    assert {"training step", "ε spent", "PLD 2.76"} <= epsilon
    short = of_run(replace(facts, points=facts.points[:1]))
    assert "81.0 %" in texts(short[0])


def test_figures_can_stand_in_one_page(facts: Facts) -> None:
    page = "".join(of_run(facts))
    assert set(re.findall(r"https?://[^\"'<> ]+", page)) <= ADDRESSES
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert ids
    assert len(ids) == len(set(ids))


def test_there_is_no_figure_of_what_was_not_measured(facts: Facts) -> None:
    assert run_panels(replace(facts, points=())) == ([], None)
    unmeasured = replace(facts, points=tuple(replace(p, test_accuracy=None) for p in facts.points))
    assert len(of_run(unmeasured)) == 1


@pytest.mark.parametrize("certified", [((0.0, 0.936), (0.5, 0.71), (1.0, 0.0)), ((0.0, 0.936),)])
def test_certified_accuracy_is_drawn_against_the_distance(
    certified: tuple[tuple[float, float], ...], facts: Facts
) -> None:
    _, robustness = run_panels(replace(facts, certified=certified))
    assert robustness is not None
    shown = set(texts(as_svg([robustness])))
    assert "Certified accuracy by distance, 93.6 % unattacked" in shown
    assert {"certified accuracy (%)", "Euclidean distance that an example may be moved", "0.0"} <= shown
