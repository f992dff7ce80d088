"""The tutorials run, and what they print is what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def test_digits_are_learnt_within_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    left = runpy.run_path(str(TUTORIALS / "mnist.py"))
    assert left["accuracy"] > 0.75
    assert left["epsilon"] <= 3.0
    assert "epsilon" in capsys.readouterr().out
