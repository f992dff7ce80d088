"""The assurance page and the lists beside it have the results of the last run, and name tests that exist."""

import ast
import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from experiments.assurance import documents
from experiments.assurance_page import with_results

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = ROOT / "docs" / "assurance.md"


def read(name: str) -> Any:
    return json.loads(((ROOT / "docs" / "assurance") / name).read_text(encoding="utf-8"))


RESULTS = read("results.json")


@pytest.fixture
def _tables(monkeypatch):
    monkeypatch.syspath_prepend(TESTS / "assurance")


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_page_and_lists_are_generated_from_the_committed_results():
    for path, text in documents().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m experiments.assurance --write"


def page_of(**changed: Any) -> str:
    """The page by the lists beside it, of which some are replaced."""
    lists = {"planted": read("faults.json"), "around": read("run-faults.json"), "attacks": read("attacks.json")}
    return with_results(PAGE.read_text(encoding="utf-8"), **({"results": RESULTS} | lists | changed))


def test_the_page_agrees_with_the_lists():
    assert page_of() == PAGE.read_text(encoding="utf-8")
    assert "**0 of 2 cases**" in page_of(around=[{"cases": 2, "passed": 0}])
    missed = [row | {"caught": row["area"] != "Noise"} for row in read("faults.json")]
    count = sum(row["area"] == "Noise" for row in missed)
    page = page_of(planted=missed, attacks=[])
    assert f"| Noise | 0/{count} |" in page
    assert f"**{len(missed) - count} of {len(missed)} planted faults**" in page
    assert "**0 causes**" in page
    lost = copy.deepcopy(RESULTS)
    lost["audits"]["ways"][0] |= {"verdict": "violation"}
    assert re.search(r"^\| 0\.5 \| .* \| 7/8 bounds \|$", page_of(results=lost), re.MULTILINE)


def test_lists_name_tests_that_exist():
    rows = [row for name in ("faults.json", "run-faults.json", "attacks.json") for row in read(name)]
    tests = {test for row in rows for test in row["tests"]}
    assert len(tests) > 100
    assert sorted(test for test in tests if not (ROOT / test.partition("::")[0]).is_file()) == []


@pytest.mark.usefixtures("_tables")
def test_every_named_test_exists_and_the_results_cover_all_planted_faults_without_a_failure():
    from planting import FAULTS, MUTANTS

    named = {test for mutant in MUTANTS for test in mutant.caught_by} | {t for fault in FAULTS for t in fault.tried_by}
    for test in named:
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_in(TESTS / path), test
    assert RESULTS["mutants"]["caught"] == {mutant.name: True for mutant in MUTANTS}
    assert RESULTS.get("load", {"failed": []})["failed"] == []
    assert {row["verdict"] for row in RESULTS["audits"]["ways"]} == {"consistent"}
    assert all(test["passed"] == test["cases"] > 0 for test in RESULTS.get("faults", {"tests": {}})["tests"].values())


def test_promises_are_numbered_in_order():
    guarantees = PAGE.read_text(encoding="utf-8").partition("## Guarantees")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", guarantees, re.MULTILINE) == [str(k) for k in range(1, 11)]
