"""Writes the page of supported models and layers, and the list that it searches, from the results of the zoo.

    python -m experiments.zoo_pages

docs/supported-models.md gets its counts, docs/supported-models.json one line per model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.marked import replaced
from experiments.zoo import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "supported-models.md"
LIST = PAGE.with_suffix(".json")
LIBRARIES = {
    "transformers": "Hugging Face transformers",
    "peft": "Hugging Face PEFT",
    "timm": "timm",
    "torchvision": "torchvision",
    "torch": "torch (layers)",
}
# Why a model could not be tried, by the error of plain PyTorch; the first pattern that is found counts.
REASONS = {
    "the small random configuration is refused": "^Strict|^Ambiguous|divisible|multiple of",
    "an input or a setting is missing": r"missing \d+ required|None|must specify|have to spec|Config' object has no",
    "sizes of input and configuration do not fit": "^RuntimeError|^IndexError|batch_size|be of length|to unpack",
    "another library is not installed": "^ImportError",
    "PEFT has no such adapter for the model": "Target module|^ValueError: CPT|target_modules",
    "gradients of plain training are zero or not finite": "norms of the gradients",
}
OTHER = "another error of the model's own code"
NOTE = 160  # characters of a message

Rows = Sequence[Mapping[str, str]]


def rows() -> list[dict[str, str]]:
    """One row per model that was tried: library, name, result, and what there is to add."""
    found = json.loads(RESULTS.read_text())
    listed = []
    for library in LIBRARIES:
        for model, result in sorted(found.items()):
            if result["library"] == library:
                listed.append({"library": library, "name": model.partition("/")[2], **_row(result)})
    return listed


def _row(result: Mapping[str, Any]) -> dict[str, str]:
    outcome, message = result["outcome"], (result["message"] or "").partition("\n")[0][:NOTE]
    if outcome == "exact":
        return {"result": f"exact, {result['way']}", "note": message}
    if outcome == "not built":
        return {"result": outcome, "note": f"{reason_of(result['message'])}: {message}"}
    return {"result": outcome, "note": message}


def reason_of(message: str) -> str:
    """Why a model could not be tried."""
    return next((reason for reason, pattern in REASONS.items() if re.search(pattern, message)), OTHER)


def as_list(models: Rows) -> str:
    """JSON with one line per model."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in models) + "\n]\n"


def as_page(text: str, models: Rows) -> str:
    """The page with its counts updated."""
    for name, part in {"counts": counts(models), "reasons": reasons(models)}.items():
        text = replaced(text, f"<!-- made: {name} -->", f"<!-- end of {name} -->", part)
    return text


def counts(models: Rows) -> str:
    """How many models of each library were tried, with what result."""
    outcomes = Counter(row["result"].partition(",")[0] for row in models)
    exact, failed = outcomes["exact"], outcomes["not built"]
    columns = ["exact, vectorised", "exact, one by one", "not built"]
    vectorised, one_by_one, _ = (sum(row["result"] == column for row in models) for column in columns)
    lines = [
        f"**{len(models):,} models and layers** were tried. **{failed} could not be built.** Of the other",
        f"{len(models) - failed}, {exact} have the exact clipped sum ({vectorised} vectorised, {one_by_one} one by "
        f"one), and {outcomes['wrong']} a wrong one.",
        "",
        f"| library | tried | {' | '.join(columns)} | other |",
        "|---|---|" + "---|" * len(columns) + "---|",
    ]
    for library, title in LIBRARIES.items():
        results = Counter(row["result"] for row in models if row["library"] == library)
        of_columns = [results.pop(column, 0) for column in columns]
        numbers = [sum(of_columns) + results.total(), *of_columns, results.total()]
        lines.append(f"| {title} | " + " | ".join(map(str, numbers)) + " |")
    untrained = [row["name"] for row in models if row["result"].startswith("exact") and row["note"]]
    lines.append(f"\n{exact - len(untrained)} of the exact ones also train with their own dropout.")
    lines.append(f"With it, these fail in plain PyTorch: {', '.join(untrained)}.")
    return "\n".join(lines)


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
