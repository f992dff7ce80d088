"""Writes the page of supported models and layers, and the list that it searches, from the results of the zoo.

    python -m experiments.zoo_pages

docs/supported-models.md gets its counts, docs/supported-models.json one line per model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any

from experiments.marked import replaced
from experiments.zoo import RESULTS, measured

PAGE = Path(__file__).parents[1] / "docs" / "supported-models.md"
LIST = PAGE.with_suffix(".json")
LIBRARIES = {
    "transformers": "Hugging Face transformers",
    "peft": "Hugging Face PEFT",
    "timm": "timm",
    "torchvision": "torchvision",
    "torch": "torch (layers)",
}
FOUR = ("exact, vectorised", "exact, one by one", "refused", "not built")
OTHERS = {
    "wrong": "with another sum than the loop",
    "crashed": "that end with an error or not in time",
    "random": "with random gradients in plain PyTorch",
}
# Why a model could not be tried.
REASONS = LIBRARY, OTHER = "another library is not installed", "another error of the model's own code"
NOTE = 160  # characters of a message
NOTES = {  # instead of a message
    "transformers/Aimv2Model": "in transformers an unpadded text attends both ways if it is alone, and backwards "
    "beside a padded one, compiled, or by eager attention; a run computes the latter"
}

Rows = Sequence[Mapping[str, str]]


def rows() -> list[dict[str, str]]:
    """One row per model that was tried: library, name, result, and what there is to add."""
    found = measured()
    listed = []
    for library in LIBRARIES:
        for model, result in sorted(found.items()):
            if result["library"] == library:
                listed.append({"library": library, "name": model.partition("/")[2], **_row(NOTES.get(model), result)})
    return listed


def _row(note: str | None, result: Mapping[str, Any]) -> dict[str, str]:
    outcome, message = result["outcome"], note or (result["message"] or "").partition("\n")[0][:NOTE]
    if outcome == "exact":
        return {"result": f"exact, {result['way']}", "note": message}
    if outcome == "not built":
        return {"result": outcome, "note": f"{reason_of(result['message'])}: {message}"}
    return {"result": outcome, "note": message}


def reason_of(message: str) -> str:
    """Why a model could not be tried."""
    return LIBRARY if message.startswith("ImportError") else OTHER


def as_list(models: Rows) -> str:
    """JSON with one line per model."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in models) + "\n]\n"


def as_page(text: str, models: Rows) -> str:
    """The page with its counts updated."""
    parts = {"counts": counts(models), "reasons": reasons(models), "left out": left_out()}
    for name, part in parts.items():
        text = replaced(text, f"<!-- made: {name} -->", f"<!-- end of {name} -->", part)
    return text


def four(models: Rows) -> list[int]:
    """How many models are exact at the speed of the batch, exact one by one, refused, and not built."""
    return [sum(row["result"] == result for row in models) for result in FOUR]


def in_readme(models: Rows) -> str:
    """The sentence of the README."""
    vectorised, one_by_one, refused, failed = four(models)
    return (
        f"Of {len(models):,} models of transformers, PEFT, timm, torchvision and torch, a run is exact at the speed of "
        f"the batch on {vectorised:,}, exact one by one on {one_by_one}, refuses {refused}, and {failed} were not "
        f"built; the list names the other {len(models) - sum(four(models))}"
    )


def counts(models: Rows) -> str:
    """How many models of each library were tried, with what result."""
    found = four(models)
    shares = [f"{100 * number / len(models):.1f} %" for number in found]
    exact = sum(found[:2])
    lines = [
        f"**{len(models):,} models and layers** were tried, each in a run. **{found[0]:,} are exact at the speed of",
        f"the batch** ({shares[0]}), {found[1]} exact one by one ({shares[1]}), {found[2]} refused ({shares[2]}), and "
        f"{found[3]} not built ({shares[3]}).",
        *others(models),
        "",
        f"| library | tried | {' | '.join(FOUR)} | other |",
        "|---|---|" + "---|" * len(FOUR) + "---|",
    ]
    for library, title in LIBRARIES.items():
        results = Counter(row["result"] for row in models if row["library"] == library)
        of_columns = [results.pop(column, 0) for column in FOUR]
        numbers = [sum(of_columns) + results.total(), *of_columns, results.total()]
        lines.append(f"| {title} | " + " | ".join(map(str, numbers)) + " |")
    untrained = [row["name"] for row in models if row["result"].startswith("exact") and row["note"]]
    lines.append(f"\n{exact - len(untrained):,} of the exact ones also train with their own dropout.")
    lines.append(f"With it, these fail in plain PyTorch: {', '.join(untrained)}." if untrained else "")
    return "\n".join([*lines, *slowness()]).rstrip()


def slowness() -> list[str]:
    """How long a batch takes one by one, as `experiments.zoo --times` has measured."""
    kept = [found["times a plain step"]["32"] for found in measured().values() if "times a plain step" in found]
    own, each = map(sorted, zip(*kept, strict=True))
    return wrap(
        f"One by one, a batch of 32 takes {median(own):.0f} times a plain step (median of {len(own)} of them; "
        f"{own[0]:.0f} to {own[-1]:.0f}), and 32 plain steps of one example take {median(each):.0f} times "
        f"({each[0]:.0f} to {each[-1]:.0f}), because models so small take as long for one as for many.",
        120,
    )


def others(models: Rows) -> list[str]:
    """A line for each result beside the four, with the models that have it."""
    lines = []
    for result, text in OTHERS.items():
        names = [f"{row['name']} ({row['note']})" for row in models if row["result"] == result]
        lines += wrap(f"{len(names)} {text}: {', '.join(names)}.", 120) if names else []
    return lines


def left_out() -> str:
    """Classes that are no trainable model, by reason."""
    found: dict[str, list[str]] = {}
    for name, reason in json.loads(RESULTS.read_text())["left out"].items():
        found.setdefault(reason, []).append(name.partition("/")[2])
    return "\n".join(
        ["| left out because | classes |", "|---|---|", *(f"| {r} | {', '.join(found[r])} |" for r in sorted(found))]
    )


def reasons(models: Rows) -> str:
    """How many models could not be tried, for each reason."""
    found = Counter(row["note"].partition(":")[0] for row in models if row["result"] == "not built")
    return "\n".join(
        ["| not built because | models |", "|---|---|", *(f"| {r} | {n} |" for r, n in found.most_common())]
    )


def main() -> None:
    models = rows()
    LIST.write_text(as_list(models))
    PAGE.write_text(as_page(PAGE.read_text(), models))


if __name__ == "__main__":
    main()
