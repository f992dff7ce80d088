"""Figures in one style: their names for who cannot see them, and their form as part of a page and as a file."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

import matplotlib
from matplotlib.figure import Figure

from papers.drawing import BLUE, FIGURE_CSS, INK, PAPER, STYLE, standalone, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(title: str) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure()
        axes = figure.add_subplot()
        axes.set(xlabel="noise multiplier", ylabel="ε")
        axes.plot([1, 2, 4], [9, 3, 1], color=BLUE, label="batch <1>", marker="o")
        axes.legend(frameon=False)
        return svg(figure, title=title)


def test_lines_and_axes_are_named_also_for_who_cannot_see_them() -> None:
    root = Xml.fromstring(drawn("ε by noise"))
    texts = {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")}
    assert {"noise multiplier", "ε", "batch <1>"} <= texts
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "ε by noise"
    assert root.findtext(f"{SVG}desc") == "ε against noise multiplier"


def test_a_file_has_its_own_background_and_a_part_of_a_page_has_not_and_all_colours_have_a_dark_one() -> None:
    part = drawn("a")
    assert "<style" not in part
    assert PAPER not in part
    file = standalone(part)
    Xml.fromstring(file)
    assert PAPER in file
    assert FIGURE_CSS in file
    styled = [element.get("style", "") for element in Xml.fromstring(part).iter()]
    used = {colour for style in styled for colour in re.findall(r"(?:fill|stroke): (#\w{6})", style)}
    assert {BLUE, INK} <= used
    assert all(f'[style*="stroke: {colour}"]' in FIGURE_CSS for colour in used), used
    ids = re.findall(r'\bid="([^"]+)"', drawn("a") + drawn("b"))
    assert len(ids) == len(set(ids)) > 0
