"""Peak memory: how much more of it than plain training each method takes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.steps.cell import Cell
from benchmarks.steps.results import amount
from papers.lee_kifer_2020.figures import COLUMNS, ratio
from papers.lee_kifer_2020.runs import Measured, Plan, Run, amount_of
from papers.section import Section

TITLE = "Peak memory"
DEEP = Cell("resnet101", 16, 128)
DEEP_WHOLE = Cell("resnet101", 16, 256)
MANY = Cell("resnet18", 500, 32)
_PRINTED = {"plain": "48", "ReweightGP": "36", "MultiLoss": "18"}  # first batch that fails on a GPU of 11 GB
_ABOUT = (
    "Growth of the memory of a process during steps, beyond the model and the batch, and its ratio to that of plain "
    "training, from one process each. The paper raises the batch of ResNet-101 at 256 × 256 until a GPU of 11 GB is "
    "full, and reports the first batch that fails; a processor measures smaller images at a fixed batch instead, and "
    "--full those of the paper. At batch 500 the paper only says that ReweightGP runs.",
)


def _methods(cell: Cell, whole: bool) -> tuple[str, ...]:
    """The methods of the paper and the captured step; at batch 500 not those that keep or compute 500 gradients."""
    left_out = {"compiled"} | ({"MultiLoss", "nxBP"} if cell == MANY else set())
    return tuple(name for name in COLUMNS if name not in left_out)


PLAN = Plan("memory", (DEEP, MANY), (DEEP, DEEP_WHOLE, MANY), _methods, lambda cell: 200.0)


def section(runs: Sequence[Run]) -> Section:
    """Make the table from the finished measurements."""
    rows = [line for cell, run in PLAN.runs(runs).items() for line in _lines(cell, run.measured if run else None)]
    header = ("network", "images", "batch", "method", "first batch that fails: paper", "peak: ours", "to plain: ours")
    return Section("table-memory", TITLE, _ABOUT, header, tuple(rows))


def _lines(cell: Cell, measured: Measured | None) -> list[tuple[str, ...]]:
    known = (cell.title, f"{cell.image} × {cell.image}", str(cell.batch))
    return [
        (
            *(known if place == 0 else ("", "", "")),
            COLUMNS[name],
            _PRINTED.get(name, "") if cell.name == DEEP.name else "",
            *_shown(measured, name),
        )
        for place, name in enumerate(_methods(cell, False))
    ]


def _shown(measured: Measured | None, method: str) -> tuple[str, str]:
    if measured is None:
        return "not run", ""
    taken = amount_of(measured, method, "bytes")
    return (amount(taken, "bytes") if taken else "failed"), ratio(to_plain(measured, method))


def to_plain(measured: Measured, method: str) -> float | None:
    """The peak memory of a method as a ratio to plain training."""
    taken, plain = (amount_of(measured, name, "bytes") for name in (method, "plain"))
    return taken / plain if taken and plain else None
