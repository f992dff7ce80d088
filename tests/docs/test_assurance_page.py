"""The assurance page has the results of the last run of its script, and names tests that exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = ROOT / "docs" / "assurance.md"
RESULTS = json.loads((ROOT / "docs" / "assurance" / "results.json").read_text(encoding="utf-8"))


@pytest.fixture
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TESTS / "assurance")


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_the_page_is_generated_from_the_committed_results() -> None:
    command = [sys.executable, "-m", "experiments.assurance", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.assurance"


@pytest.mark.usefixtures("_tables")
def test_every_named_test_exists() -> None:
    from faults import FAULTS
    from mutants import MUTANTS

    named = {test for mutant in MUTANTS for test in mutant.caught_by} | {t for fault in FAULTS for t in fault.tried_by}
    for test in named:
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_in(TESTS / path), test


@pytest.mark.usefixtures("_tables")
def test_the_results_cover_all_planted_faults_without_a_failure() -> None:
    from mutants import MUTANTS

    assert RESULTS["mutants"]["caught"] == {mutant.name: True for mutant in MUTANTS}
    assert RESULTS.get("load", {"failed": []})["failed"] == []
    assert {row["verdict"] for row in RESULTS["audits"]["ways"]} == {"consistent"}
    assert all(test["passed"] == test["cases"] > 0 for test in RESULTS.get("faults", {"tests": {}})["tests"].values())


def test_links_of_the_page_have_targets() -> None:
    links = set(re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")))
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_promises_are_numbered_in_order() -> None:
    numbers = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert numbers == [str(k) for k in range(1, 11)]
