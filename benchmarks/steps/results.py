"""The files of a benchmark: one JSON file and one figure for each experiment, and a page that shows all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmarks.steps.comparison import ahead, overhead, summary
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.figures import figure
from benchmarks.steps.methods import PLAIN
from benchmarks.steps.report import Report, cell_label, method_label
from noisette.accounting import atomic_files
from noisette.training.report.figures import templates
from papers.drawing import standalone

PAGE = "bench.html"
_PAGES = templates("benchmarks.steps")


def write(report: Report, out: Path) -> None:
    """Write the files of an experiment, and the page with all experiments in the folder.

    Guarantee: each file is replaced atomically, so none is ever incomplete.
    """
    name = report["experiment"]
    atomic_files.write(out / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
    atomic_files.write(out / f"{name}.svg", standalone(figure(report)).encode())
    atomic_files.write(out / PAGE, page(read(out)).encode())


def read(out: Path) -> list[Report]:
    """The reports in a folder, in the order of the experiments."""
    files = [out / f"{name}.json" for name in EXPERIMENTS]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def page(reports: list[Report]) -> str:
    """The page as HTML."""
    return _PAGES.get_template("page.html").render(
        sections=[_section(report) for report in reports],
        cell_label=cell_label,
        method_label=method_label,
        amount=amount,
        overhead=overhead,
        ahead=ahead,
    )


def _section(report: Report) -> dict[str, Any]:
    cells = report["cells"]
    methods = dict.fromkeys(name for cell in cells for name in cell["methods"] if name not in PLAIN)
    return {
        "report": report,
        "summary": summary(report),
        "figure": Markup(figure(report)),
        "methods": list(methods),
        "plain": [name for name in PLAIN if any(name in cell["methods"] for cell in cells)],
        "rows": [(cell, _best(cell)) for cell in cells],
        "targets": any(cell["target"] for cell in cells),
        "compared": any(overhead(cell, report["unit"]) for cell in cells),
        "peers": any(ahead(cell, report["unit"]) for cell in cells),
        "ready": any("ready" in row for cell in cells for row in cell["methods"].values()),
        "failures": _failures(report),
        "machine": _machine(report),
    }


def amount(value: float, unit: str) -> str:
    """A time or a size in a suitable unit.

    >>> amount(0.00312, "seconds"), amount(21.5, "seconds"), amount(10490000, "bytes")
    ('3.12 ms', '21.5 s', '10.0 MiB')
    """
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _best(cell: dict[str, Any]) -> str | None:
    """The private method with the lowest ratio."""
    ratios = {name: row["ratio"] for name, row in cell["methods"].items() if "ratio" in row and name not in PLAIN}
    return min(ratios, key=lambda name: ratios[name], default=None)


def _failures(report: Report) -> list[tuple[str, str, str]]:
    """Failed measurements: method, its cells, and the message; equal messages of a method are merged."""
    cells: dict[tuple[str, str], list[str]] = {}
    for cell in report["cells"]:
        for name, row in cell["methods"].items():
            if "error" in row:
                cells.setdefault((name, row["error"]), []).append(cell_label(cell))
    return [(method_label(name), "; ".join(where), message) for (name, message), where in cells.items()]


def _machine(report: Report) -> str:
    """Machine, settings and versions in one line."""
    hardware = report["hardware"]
    versions = [f"{package} {number}" for package, number in hardware["versions"].items() if number]
    processor = (
        hardware["processor"] if hardware["device"] == "cpu" else f"{hardware['device']}, {hardware['processor']}"
    )
    threads = f"{hardware['threads']} thread{'s' if hardware['threads'] > 1 else ''}"
    lower = [] if report.get("dtype", "float32") == "float32" else [f"autocast to {report['dtype']}"]
    rounds = [_rounds(report)] if report["unit"] == "seconds" else []
    return ", ".join([processor, threads, *lower, *rounds, f"Python {hardware['python']}", *versions])


def _rounds(report: Report) -> str:
    """How many measurements a median is of."""
    most = report["rounds"]
    made = [len(row["each"]) for cell in report["cells"] for row in cell["methods"].values() if "each" in row]
    least = min([*made, most])
    if most == 1:
        return "one round"
    return f"median of {most} rounds" if least == most else f"median of {least} to {most} rounds"
