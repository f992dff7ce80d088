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


def test_an_audit_finds_something_and_no_more_than_the_guarantee_allows() -> None:
    audit = runpy.run_path(str(TUTORIALS / "audit.py"))["audit"]
    assert 0.3 < audit.certified_mu <= 1.0
