"""The code of the page on scikit-learn runs, and its numbers are about those that it states."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scikit-learn.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Return what all blocks define together."""
    found: dict[str, Any] = {"__name__": "a_users_module"}
    for block in BLOCKS:
        exec(block, found)
    return found


def test_accuracy_is_about_the_stated_one(names: dict[str, Any]) -> None:
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.85
    assert names["trial"].read_from_rows_ == ("classes", "size", "bounds")
    assert names["pipeline"].score(names["people"], names["rent"]) > 0.8


def test_fits_of_one_ledger_share_the_budget(names: dict[str, Any]) -> None:
    assert 2.9 < names["shared"].epsilon_ <= 3
    assert len(names["ledger"].events) == 2


def test_picture_is_of_the_committed_results() -> None:
    from experiments.tables_picture import LINES, PLAIN, TITLES, picture

    committed = Path(__file__).parents[2] / "benchmarks" / "results" / "tables.json"
    results = json.loads(committed.read_text(encoding="utf-8"))
    assert {r["table"] for r in results} == set(TITLES)
    assert {r["method"] for r in results} == LINES.keys() | PLAIN.keys()
    drawn = picture(results)
    shown = committed.with_suffix(".svg").read_text(encoding="utf-8")
    assert all(title in drawn and title in shown for title in TITLES.values())
    assert drawn.count("<path") == shown.count("<path")
