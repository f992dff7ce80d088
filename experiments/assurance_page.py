"""What is generated from the results of the assurance: the parts of docs/assurance.md, and the lists beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from experiments.marked import replaced

Json = Mapping[str, Any]
Rows = Sequence[Json]


class Planted(Protocol):
    """A fault in the library, and the tests that detect it."""

    name: str
    harm: str
    caught_by: tuple[str, ...]


class Tried(Protocol):
    """A fault around a run, its outcome, and the tests of it."""

    name: str
    outcome: str
    tried_by: tuple[str, ...]


def planted_faults(results: Json, groups: Mapping[str, Sequence[Planted]]) -> list[dict[str, Any]]:
    """The rows of faults.json: one per planted fault, in the order of a training step."""
    caught, audit = results["mutants"]["caught"], results["audits"]["mutants"]
    rows = []
    for area, group in groups.items():
        for fault in group:
            row = {"area": area, "fault": fault.name, "harm": fault.harm, "caught": caught.get(fault.name, False)}
            row["tests"] = _paths(fault.caught_by)
            if fault.name in audit:
                row["step audit alone"] = audit[fault.name]
            rows.append(row)
    return rows


def faults_around_a_run(results: Json, faults: Sequence[Tried]) -> list[dict[str, Any]]:
    """The rows of run-faults.json; a test that was not run counts as a case that has not passed."""
    tests = results["faults"]["tests"]
    rows = []
    for fault in faults:
        own = [tests.get(test, {"cases": 1, "passed": 0}) for test in fault.tried_by]
        cases, passed = (sum(test[count] for test in own) for count in ("cases", "passed"))
        row = {"fault": fault.name, "outcome": fault.outcome, "cases": cases, "passed": passed}
        rows.append(row | {"tests": _paths(fault.tried_by)})
    return rows


def _paths(tests: Iterable[str]) -> list[str]:
    return [f"tests/{test}" for test in tests]


def listed(rows: Rows) -> str:
    """JSON with one line per row, so that a search finds the whole row."""
    return "[\n" + ",\n".join(" " + json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def with_results(text: str, results: Json, planted: Rows, around: Rows, attacks: Rows) -> str:
    """The page with its generated parts updated, given the rows of faults.json, run-faults.json and attacks.json."""
    made = {"summary": summary(results, planted, around, attacks), "mutants": areas(planted), "audits": audits(results)}
    for name, part in made.items():
        text = replaced(text, f"<!-- made: {name} -->", f"<!-- end of {name} -->", part)
    return text


def summary(results: Json, planted: Rows, around: Rows, attacks: Rows) -> str:
    machine, audited = results["machine"], results["audits"]["ways"]
    replays = [test for name, test in results["faults"]["tests"].items() if "test_neighbour_replay" in name]
    consistent = sum(row["verdict"] == "consistent" for row in audited)
    return "\n".join(
        [
            f"- **{sum(row['caught'] for row in planted)} of {len(planted)} planted faults** are caught by the tests "
            "named for them.",
            f"- **{consistent} of {len(audited)} audits** of the training loop find the documented mechanism.",
            f"- **{_passed(replays)} replays** of whole runs with a record removed or invalid publish the same.",
            f"- **{_passed(around)} cases** of faults around a run have the stated outcome.",
            f"- **{len(attacks)} causes** behind 361 attempts of an adversarial reading are closed, each with tests in "
            "`tests/redteam`\n  ([attacks.json](assurance/attacks.json)).",
            "",
            f"Last run: noisette {machine['noisette']}, torch {machine['torch']}, Python {machine['python']}.",
        ]
    )


def _passed(rows: Rows) -> str:
    return f"{sum(row['passed'] for row in rows)} of {sum(row['cases'] for row in rows)}"


def areas(planted: Rows) -> str:
    """Of each area, how many of the planted faults are caught; then what the step audit sees alone."""
    in_area, caught = Counter(row["area"] for row in planted), Counter(row["area"] for row in planted if row["caught"])
    verdicts = Counter(row["step audit alone"] for row in planted if "step audit alone" in row)
    lines = ["| area | caught |", "|---|---|"]
    lines += [f"| {area} | {caught[area]}/{count} |" for area, count in in_area.items()]
    seen = verdicts.total() - verdicts["consistent"]
    return "\n".join(
        [*lines, "", f"The step audit alone sees {seen} of {verdicts.total()} faults of clipping and noise."]
    )


def audits(results: Json) -> str:
    """For each noise multiplier, the range of what the audits of all gradient bounds certify."""
    rows = results["audits"]["ways"]
    lines = ["| noise | mu allowed | mu certified | consistent |", "|---|---|---|---|"]
    for sigma in sorted({row["noise_multiplier"] for row in rows}):
        own = [row for row in rows if row["noise_multiplier"] == sigma]
        least, most = (function(row["certified_mu"] for row in own) for function in (min, max))
        consistent = sum(row["verdict"] == "consistent" for row in own)
        allowed = own[0]["guaranteed_mu"]
        lines.append(f"| {sigma:g} | {allowed:g} | {least:.2f}–{most:.2f} | {consistent}/{len(own)} bounds |")
    return "\n".join(lines)
