from __future__ import annotations

from xml.etree import ElementTree as Xml

from noisette.training.report.figures import accuracy_against_radius


def test_accuracy_without_attack_is_named_where_the_line_begins() -> None:
    figure = accuracy_against_radius([(0.0, 0.936), (0.5, 0.71), (1.0, 0.0)])
    shown = {"".join(e.itertext()).strip() for e in Xml.fromstring(figure).iter("{http://www.w3.org/2000/svg}text")}
    assert {"93.6 % unattacked", "certified accuracy (%)", "Euclidean distance that an example may be moved"} <= shown
    assert {"0.0", "1.0"} <= shown
    assert figure.startswith("<svg")
    assert "var(--blue, #" in figure


def test_there_is_a_figure_of_one_radius_and_none_of_no_radius() -> None:
    assert "80.0 % unattacked" in accuracy_against_radius([(0.0, 0.8)])
    assert accuracy_against_radius([]) == ""
