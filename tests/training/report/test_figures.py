from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest

from noisette.accounting import Gaussian
from noisette.accounting.events import facts_of as event_facts
from noisette.training.report import Facts
from noisette.training.report.figures import accuracy_against_epsilon, epsilon_against_steps

SVG = "{http://www.w3.org/2000/svg}"


def texts(figure: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in Xml.fromstring(figure).iter(f"{SVG}text")]


def heights(figure: str, *starts: str) -> list[float]:
    """Vertical places of the texts that start like this, in units of the figure."""
    places = {}
    for element in Xml.fromstring(figure).iter(f"{SVG}text"):
        text = "".join(element.itertext()).strip()
        moved = re.search(r"translate\([-\d.]+ ([-\d.]+)\)", element.get("transform", ""))
        places[text] = float(moved[1]) if moved else float(element.get("y", "nan"))
    return [next(place for text, place in places.items() if text.startswith(start)) for start in starts]


def test_three_accountants_are_named_with_their_price(facts: Facts) -> None:
    shown = texts(epsilon_against_steps(facts))
    assert "PLD 2.76" in shown
    assert {"training step", "ε spent"} <= set(shown)
    rdp, moments = (next(float(t.split()[1]) for t in shown if t.startswith(name)) for name in ("RDP", "moments"))
    assert 2.76 < rdp < moments


def test_accuracy_is_labelled_at_its_end(facts: Facts) -> None:
    shown = texts(accuracy_against_epsilon(facts))
    assert {"ε spent", "test accuracy (%)", "93.1 %"} <= set(shown)


def test_labels_stand_apart_when_accountants_agree(facts: Facts) -> None:
    rdp_price = next(float(t.split()[1]) for t in texts(epsilon_against_steps(facts)) if t.startswith("RDP"))
    close = replace(facts, points=tuple(replace(p, epsilon=rdp_price) for p in facts.points))
    pld, rdp = heights(epsilon_against_steps(close), "PLD", "RDP")
    assert abs(pld - rdp) > 9  # the height of the letters


@pytest.mark.parametrize("draw", [epsilon_against_steps, accuracy_against_epsilon])
def test_a_figure_can_stand_in_a_page(draw, facts: Facts) -> None:
    figure = draw(facts)
    addresses = set(re.findall(r"https?://[^\"'<> ]+", figure))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert figure.startswith("<svg")
    assert "var(--ink, #" in figure
    ids = re.findall(r'\bid="([^"]+)"', epsilon_against_steps(facts) + accuracy_against_epsilon(facts))
    assert len(ids) == len(set(ids))


def test_a_short_run_is_drawn_too(facts: Facts) -> None:
    one = replace(facts, points=facts.points[:1])
    assert "PLD" in epsilon_against_steps(one)
    assert "81.0 %" in texts(accuracy_against_epsilon(one))


def test_there_is_no_figure_without_points_or_test_examples(facts: Facts) -> None:
    assert epsilon_against_steps(replace(facts, points=())) == ""
    unmeasured = replace(facts, points=tuple(replace(p, test_accuracy=None) for p in facts.points))
    assert accuracy_against_epsilon(unmeasured) == ""


def test_every_line_counts_everything_that_the_ledger_counts(facts: Facts) -> None:
    def rdp(facts: Facts) -> float:
        return next(float(t.split()[1]) for t in texts(epsilon_against_steps(facts)) if t.startswith("RDP"))

    more = replace(facts, released=(*facts.released, (event_facts(Gaussian(2.0)), 1)))
    assert rdp(more) > rdp(facts) + 0.1
