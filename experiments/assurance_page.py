"""The parts of docs/assurance.md that are generated from results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from experiments.marked import replaced

Json = Mapping[str, Any]
_NOT_TRIED = "not run"


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


def with_results(text: str, results: Json, groups: Mapping[str, Sequence[Planted]], faults: Sequence[Tried]) -> str:
    """The page with its generated parts updated."""
    made = {
        "summary": summary(results, groups),
        "audits": audits(results),
        "mutants": mutants(results, groups),
        "faults": faults_table(results, faults),
        "load": load(results),
    }
    for name, part in made.items():
        text = replaced(text, f"<!-- made: {name} -->", f"<!-- end of {name} -->", part)
    return text


def summary(results: Json, groups: Mapping[str, Sequence[Planted]]) -> str:
    caught, machine = results["mutants"]["caught"], results["machine"]
    planted = [mutant.name for group in groups.values() for mutant in group]
    tests = results["faults"]["tests"].values() if "faults" in results else []
    ended = (
        f"**{sum(t['passed'] for t in tests)} of {sum(t['cases'] for t in tests)} cases** of faults around a run have"
    )
    rows = results["audits"]["ways"]
    consistent = sum(row["verdict"] == "consistent" for row in rows)
    return "\n".join(
        [
            f"- **{sum(caught.get(name, False) for name in planted)} of {len(planted)} planted faults** are caught by "
            "the tests named for them.",
            f"- **{consistent} of {len(rows)} audits** of the real training loop find the documented mechanism.",
            f"- {ended} the outcome in the table." if tests else f"- Faults around a run: {_NOT_TRIED}.",
            "",
            f"The last run was of noisette {machine['noisette']} with torch {machine['torch']} and Python "
            f"{machine['python']}, on {machine['cores']} processor cores.",
        ]
    )


def audits(results: Json) -> str:
    rows = results["audits"]["ways"]
    sigmas = sorted({row["noise_multiplier"] for row in rows})
    lines = [
        "| gradient bound | " + " | ".join(f"noise {sigma:g}" for sigma in sigmas) + " | verdict |",
        "|---|" + "---|" * (len(sigmas) + 1),
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        own = {row["noise_multiplier"]: row for row in rows if row["way"] == way}
        cells = [f"{own[sigma]['certified_mu']:.2f} of {own[sigma]['guaranteed_mu']:g}" for sigma in sigmas]
        verdicts = " and ".join(dict.fromkeys(row["verdict"] for row in own.values()))
        lines.append(f"| {way} | " + " | ".join(cells) + f" | {verdicts} |")
    return "\n".join(lines)


def mutants(results: Json, groups: Mapping[str, Sequence[Planted]]) -> str:
    caught, audit = results["mutants"]["caught"], results["audits"]["mutants"]
    parts = []
    for title, group in groups.items():
        lines = [
            f"<details><summary>{title}: {len(group)} faults</summary>\n",
            "| planted fault | what it would do | caught | by | step audit |",
            "|---|---|---|---|---|",
        ]
        for mutant in group:
            verdict = {"consistent": "cannot see it"}.get(said := audit.get(mutant.name, ""), said)
            yes = "yes" if caught.get(mutant.name) else "**no**"
            lines.append(f"| {mutant.name} | {mutant.harm} | {yes} | {named(mutant.caught_by)} | {verdict} |")
        parts.append("\n".join([*lines, "\n</details>"]))
    return "\n\n".join(parts)


def faults_table(results: Json, faults: Sequence[Tried]) -> str:
    tests = results["faults"]["tests"] if "faults" in results else None
    lines = ["| fault | outcome | cases with this outcome | tests |", "|---|---|---|---|"]
    for fault in faults:
        own = [] if tests is None else [tests.get(test, {"cases": 1, "passed": 0}) for test in fault.tried_by]
        cases = f"{sum(t['passed'] for t in own)} of {sum(t['cases'] for t in own)}" if own else _NOT_TRIED
        lines.append(f"| {fault.name} | {fault.outcome} | {cases} | {named(fault.tried_by)} |")
    return "\n".join(lines)


def load(results: Json) -> str:
    if "load" not in results:
        return f"Figures of long and large runs: {_NOT_TRIED}."
    figures = results["load"]["figures"]
    return "\n".join(
        ["| figure | measured |", "|---|---|", *(f"| {name} | {value:,g} |" for name, value in figures.items())]
    )


def named(tests: Sequence[str]) -> str:
    """Names of tests as links to their files."""
    links = []
    for test in tests:
        path, _, name = test.partition("::")
        case = name.partition("[")[2].removesuffix("]")
        links.append(f"[{name.partition('[')[0]}](../tests/{path})" + (f" ({case})" if case else ""))
    return "<br>".join(links)
