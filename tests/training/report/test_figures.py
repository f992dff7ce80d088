"""Figures of runs: what they show, their form as part of a page and as a file."""

import re
from dataclasses import replace
from xml.etree import ElementTree as Xml

from noisette.training.report.facts import Facts
from noisette.training.report.figures import BLUE, FIGURE_CSS, INK, PAPER, Panel, as_svg, course_of_run
from papers.drawing import standalone

SVG = "{http://www.w3.org/2000/svg}"
ADDRESSES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def drawn(name: str, *points: tuple[float, float]) -> str:
    return as_svg(Panel("ε by noise", "noise multiplier", "ε", name, points))


def texts(figure: str) -> set[str]:
    return {"".join(element.itertext()).strip() for element in Xml.fromstring(figure).iter(f"{SVG}text")}


def of_run(facts: Facts) -> list[str]:
    return [as_svg(panel) for panel, _ in course_of_run(facts)]


def test_lines_and_axes_are_named_also_for_who_cannot_see_them():
    figure = drawn("batch <1>", (1, 9), (2, 3), (4, 1))
    assert {"ε by noise", "noise multiplier", "ε", "batch <1>"} <= texts(figure)
    root = Xml.fromstring(figure)
    assert (root.get("role"), root.findtext(f"{SVG}title")) == ("img", "ε by noise")
    assert root.findtext(f"{SVG}desc") == "ε against noise multiplier; batch <1>: from 9 at 1 to 1 at 4"


def test_a_file_has_its_own_background_and_a_part_of_a_page_has_not_and_all_colours_have_a_dark_one():
    part = drawn("a", (1, 2))
    assert "<style" not in part
    assert PAPER not in part
    assert "<use" in part, "a single point is a mark"
    file = standalone(part)
    Xml.fromstring(file)
    assert PAPER in file
    assert FIGURE_CSS in file
    styled = [element.get("style", "") for element in Xml.fromstring(part).iter()]
    used = {colour for style in styled for colour in re.findall(r"(?:fill|stroke): (#\w{6})", style)}
    assert {BLUE, INK} <= used
    assert all(f'[style*="stroke: {colour}"]' in FIGURE_CSS for colour in used), used


def test_the_course_of_a_run_has_accuracy_and_cost_and_stands_in_one_page(facts):
    figures = of_run(facts)
    accuracy, epsilon = map(texts, figures)
    assert {"ε spent", "test accuracy (%)", "93.1 %"} <= accuracy
    assert {"training step", "ε spent", "PLD 2.76"} <= epsilon
    assert "81.0 %" in texts(of_run(replace(facts, points=facts.points[:1]))[0])
    page = "".join(figures)
    assert set(re.findall(r"https?://[^\"'<> ]+", page)) <= ADDRESSES
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 0
    assert of_run(replace(facts, points=())) == [], "nothing was measured"
    assert len(of_run(replace(facts, points=tuple(replace(p, test_accuracy=None) for p in facts.points)))) == 1
