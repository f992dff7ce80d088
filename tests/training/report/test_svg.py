"""Figures keep their lines and letters in renderers that know no CSS, or none of its variables."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from noisette.training.report.figures import BLUE, INK, STYLE, standalone, svg

ROOT = Path(__file__).parents[3]
COMMITTED = sorted(path for folder in ("benchmarks", "docs", "papers") for path in (ROOT / folder).rglob("*.svg"))
PAINT = ("fill", "stroke")


@pytest.fixture(scope="module")
def figure() -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(3, 2))
        axes = drawn.add_subplot()
        axes.plot([1, 2, 3], [1, 4, 9], "--o", color=BLUE, alpha=0.5)
        axes.set(xlabel="step", ylabel="epsilon $x^2$")
        return svg(drawn, salt="test")


def test_colours_of_the_page_have_a_plain_attribute_beside_them(figure: str) -> None:
    styled = [element for element in ElementTree.fromstring(figure).iter() if "style" in element.attrib]
    assert len(styled) > 10
    for element in styled:
        colours = re.findall(r"(fill|stroke): var\(--\w+, (#\w{6})\)", element.attrib["style"])
        assert len(colours) == element.attrib["style"].count(";") + 1
        assert all(element.get(name) == colour for name, colour in colours)


def test_line_has_its_colour_width_and_dashes_without_css(figure: str) -> None:
    [line] = [e for e in ElementTree.fromstring(figure).iter() if e.get("stroke") == BLUE and e.get("stroke-dasharray")]
    assert line.get("fill") == "none"
    assert line.get("stroke-width") == "1.8"
    assert line.get("stroke-opacity") == "0.5"


def test_text_has_its_font_without_css(figure: str) -> None:
    texts = [element for element in ElementTree.fromstring(figure).iter() if element.tag.endswith("text")]
    assert texts
    for text in texts:
        inner = next((part for part in text if part.tag.endswith("tspan")), text)
        assert inner.get("font-family") == "system-ui, sans-serif"
        assert inner.get("font-size", "").endswith("px")
        assert INK in (text.get("fill"), inner.get("fill"))


def test_figure_has_no_style_sheet_that_would_apply_to_its_page(figure: str) -> None:
    assert "<style" not in figure


def test_file_has_no_variables_and_dark_colours_for_those_who_prefer_them(figure: str) -> None:
    file = standalone(figure)
    assert "var(" not in file
    assert f'@media (prefers-color-scheme: dark) {{ [fill="{INK}"]' in file


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_figures_need_no_css(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert all("style" not in element.attrib for element in root.iter())
    painted = [e for e in root.iter() if e.tag.endswith(("path", "use")) and any(e.get(paint) for paint in PAINT)]
    assert any(element.get("stroke", "none") != "none" for element in painted)
