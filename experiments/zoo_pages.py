"""Writes the pages of supported models and layers from the results of the zoo.

python -m experiments.zoo_pages
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from experiments.zoo import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"supported-models.md": ("transformers", "peft", "timm", "torchvision"), "supported-layers.md": ("torch",)}
NAMES = {
    "transformers": "Hugging Face transformers",
    "peft": "Hugging Face PEFT",
    "timm": "timm",
    "torchvision": "torchvision",
    "torch": "torch",
}
TITLES = {
    "supported-models.md": "Supported models",
    "supported-layers.md": "Supported layers",
}
HOW = """\
Each entry is a small {what} with random weights. Its clipped sum by `run.accumulate` is held against a loop over
single examples by plain autograd, in double precision where the model runs in it; the relative difference is at most
1e-6 (5e-4 in single precision). Then two steps are taken with its own dropout.

- **vectorised**: all examples at once, by `torch.func.vmap`.
- **one by one**: the model branches on values of an example, or makes tensors whose size depends on them, so one
  example is computed after the other; exact, and slower. A `OneByOneWarning` says so once.

Batch norm has fixed statistics here; [batch norm](batch-norm.md) says what else can be done.

This page is written by `python -m experiments.zoo_pages` from
[zoo.json](../experiments/results/zoo.json), which `python -m experiments.zoo` measures.
"""


def results() -> dict[str, dict[str, Any]]:
    """What was measured, without models whose own code does not run on the random inputs of the zoo."""
    found = json.loads(RESULTS.read_text())
    return {name: result for name, result in found.items() if result["outcome"] != "not built"}


def page(name: str) -> str:
    """The text of a page."""
    measured = results()
    parts = [f"# {TITLES[name]}\n", HOW.format(what="layer" if "layers" in name else "model")]
    for library in PAGES[name]:
        rows = {model: result for model, result in measured.items() if result["library"] == library}
        if rows:
            parts.append(_section(library, rows))
    return "\n".join(parts)


def _section(library: str, rows: dict[str, dict[str, Any]]) -> str:
    counts = Counter(result["outcome"] for result in rows.values())
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    lines = [f"## {NAMES[library]}", "", f"{len(rows)} measured: {said}.", ""]
    lines += ["| name | sum | computed | trains with its dropout |", "|---|---|---|---|"]
    for model, result in sorted(rows.items()):
        trains = {True: "yes", False: "no", None: ""}[result.get("trains")]
        lines.append(f"| {model.partition('/')[2]} | {result['outcome']} | {result.get('way', '')} | {trains} |")
    if notes := [(model, result) for model, result in sorted(rows.items()) if result.get("message")]:
        lines += ["", "What the others say:", ""]
        lines += [f"- {model.partition('/')[2]}: {_first_line(result['message'])}" for model, result in notes]
    return "\n".join(lines) + "\n"


def _first_line(message: str) -> str:
    return message.splitlines()[0][:300].replace("<", "\\<")


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page(name))


if __name__ == "__main__":
    main()
