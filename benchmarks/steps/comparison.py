"""What the measurements of a cell amount to: the best of noisette against plain training and against its peers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from benchmarks.steps.methods import OURS, PLAIN, is_peer

Cell = dict[str, Any]  # of a report
GOAL_MEAN = 1.1  # of the best of noisette against the quicker plain training, over all models
GOAL_AHEAD = 1.5  # of the time of the best peer against that of the best of noisette, on each model


def best_of(cell: Cell, unit: str, names: Collection[str]) -> tuple[str, float] | None:
    """The best of these methods, and its seconds or bytes; none if none of them was measured."""
    measured = {name: row[unit] for name, row in cell["methods"].items() if name in names and unit in row}
    best = min(measured, key=lambda name: measured[name], default=None)
    return None if best is None else (best, measured[best])


def overhead(cell: Cell, unit: str) -> float | None:
    """The best of noisette as a ratio to the quicker of plain eager and plain compiled training."""
    ours, plain = best_of(cell, unit, OURS), best_of(cell, unit, PLAIN)
    return ours[1] / plain[1] if ours and plain else None


def ahead(cell: Cell, unit: str) -> tuple[str, float] | None:
    """The best peer, and how many times as much as the best of noisette it takes."""
    ours = best_of(cell, unit, OURS)
    peer = best_of(cell, unit, [name for name in cell["methods"] if is_peer(name)])
    return (peer[0], peer[1] / ours[1]) if ours and peer else None


def summary(report: dict[str, Any]) -> list[str]:
    """One sentence on plain training and one on peers, as far as there are measurements."""
    cells, unit = report["cells"], report["unit"]
    overheads = [ratio for cell in cells if (ratio := overhead(cell, unit))]
    leads = [lead for cell in cells if (lead := ahead(cell, unit))]
    goals = any(cell["target"] for cell in cells)
    sentences = []
    if overheads:
        mean = math.exp(sum(map(math.log, overheads)) / len(overheads))
        goal = f" (target: at most {GOAL_MEAN:g})" if goals else ""
        sentences.append(
            f"The best of noisette against {_plain(cells, unit)} training: {mean:.2f} in the geometric mean of "
            f"{_rows(len(overheads))}{goal}."
        )
    if leads:
        peer, least = min(leads, key=lambda lead: lead[1])
        goal = f" (target: at least {GOAL_AHEAD:g} on each)" if goals else ""
        sentences.append(
            f"The best peer takes at least {least:.2f} times as much as the best of noisette "
            f"({peer.replace('-', ' ')}) in each of {_rows(len(leads))}{goal}."
        )
    return sentences


def _plain(cells: list[Cell], unit: str) -> str:
    """The plain training that :func:`overhead` is held against."""
    if not any(unit in cell["methods"].get("plain-compiled", {}) for cell in cells):
        return "plain eager"
    return f"the {'quicker' if unit == 'seconds' else 'smaller'} of plain eager and plain compiled"


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"
