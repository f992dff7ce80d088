from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as Xml

import pytest

from noisette.training.report.figures import PAPER, Line, Panel, as_png_file, as_svg, as_svg_file

SVG = "{http://www.w3.org/2000/svg}"


def panel(*lines: Line, budget: float | None = None) -> Panel:
    return Panel("ε by noise", "noise multiplier", "ε", lines, budget)


def texts(figure: str) -> dict[str, float]:
    """Every text with its height, in units of the figure."""
    places = {}
    for element in Xml.fromstring(figure).iter(f"{SVG}text"):
        moved = re.search(r"translate\([-\d.]+ ([-\d.]+)\)", element.get("transform", ""))
        text = "".join(element.itertext()).strip()
        places[text] = float(moved[1]) if moved else float(element.get("y", "nan"))
    return places


def test_lines_axes_and_budget_are_named() -> None:
    shown = texts(as_svg([panel(Line("batch 256", [1, 2, 4], [9, 3, 1]), budget=2.5)]))
    assert {"ε by noise; – –  budget 2.5", "noise multiplier", "ε", "batch 256"} <= set(shown)


def test_names_stand_apart_and_in_the_order_of_their_lines() -> None:
    lines = [Line(f"line {k}", [1, 10], [1, 5 * (1 + 1e-4 * k)]) for k in range(6)]
    shown = texts(as_svg([panel(*lines)]))
    heights = [height for name, height in shown.items() if name.startswith("line")]
    steps = [below - above for below, above in pairwise(heights)]  # SVG counts downwards
    assert min(steps) > 9  # the height of the letters
    assert min(heights) > shown["ε by noise"] + 9


@pytest.mark.parametrize("odd", [0.0, math.inf])
def test_what_a_log_scale_cannot_show_is_left_out(odd: float) -> None:
    shown = texts(
        as_svg([panel(Line("whole", [1, 2], [3, 4]), Line("half", [1, 2], [5, odd]), Line("none", [1], [odd]))])
    )
    assert {"whole", "half"} <= set(shown)
    assert "none" not in shown


def test_panels_stand_side_by_side() -> None:
    one, three = (Xml.fromstring(as_svg([panel(Line("a", [1, 2], [1, 2]))] * n)) for n in (1, 3))
    width, height = (float(three.get("viewBox", "").split()[k]) for k in (2, 3))
    assert width == pytest.approx(3 * float(one.get("viewBox", "").split()[2]))
    assert height == float(one.get("viewBox", "").split()[3])


def test_a_file_has_paper_of_its_own_and_a_part_of_a_page_has_not() -> None:
    panels = [panel(Line("a", [1, 2], [1, 2]))]
    assert PAPER in as_svg_file(panels)
    assert PAPER not in as_svg(panels)
    assert as_png_file(panels).startswith(b"\x89PNG")


def test_a_single_point_is_drawn_as_a_mark() -> None:
    assert "<use" in as_svg([panel(Line("a", [1], [2]))])
