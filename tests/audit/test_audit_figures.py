"""The figures show the measurements, and need no other file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from noisette.audit import RunAudit, Scores, StepAudit
from noisette.audit.audited_run import Point
from noisette.audit.figures import run_figure, step_figure
from noisette.training.report.figures import standalone


def scores(shape: tuple[int, int], mean: float) -> Scores:
    random = np.random.default_rng(0)
    inside = random.random(shape) < 0.5
    return Scores(random.normal(size=shape) + mean * inside, inside, 1.0, 1.0)


@pytest.mark.parametrize("shape", [(24, 512), (1, 1)])
@pytest.mark.parametrize("mean", [1.0, 4.0])
def test_step_figure_needs_no_other_file(shape: tuple[int, int], mean: float) -> None:
    element = step_figure(StepAudit(scores(shape, mean)))
    text = "".join(ElementTree.fromstring(standalone(element)).itertext())
    assert all(word in text for word in ("canaries out", "canaries in", "guaranteed", "certified", "ε of one step"))
    assert "http" not in element.replace("http://www.w3.org", "")


def test_run_figure_shows_both_epsilons_at_every_delta() -> None:
    random = np.random.default_rng(1)
    points = (Point(1e-2, 3.4, 1.8), Point(1e-5, 7.0, 0.0))
    for inside in (random.normal(1, 1, 500), np.zeros(1)):
        element = run_figure(RunAudit(inside, random.normal(size=500), points, 1e-6))
        text = "".join(ElementTree.fromstring(standalone(element)).itertext())
        assert all(word in text for word in ("guaranteed", "certified", "δ = 1e-2", "δ = 1e-5", "ε of the run"))
