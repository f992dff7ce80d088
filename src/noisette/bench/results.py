"""The files of a benchmark: one JSON and one figure for each experiment, and a page that shows them all."""

from __future__ import annotations

import json
from pathlib import Path

from noisette._internal import atomic_files
from noisette.bench.experiments import EXPERIMENTS
from noisette.bench.figures import figure
from noisette.bench.page import page
from noisette.bench.run import Report
from noisette.training.report.svg import standalone

PAGE = "bench.html"


def write(report: Report, out: Path) -> None:
    """Write an experiment's files, and the page anew with all experiments that the folder holds.

    Guarantee: no file is ever half-written; each takes the place of an older one when it is whole.
    """
    name = report["experiment"]
    atomic_files.write(out / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
    atomic_files.write(out / f"{name}.svg", standalone(figure(report)).encode())
    atomic_files.write(out / PAGE, page(read(out)).encode())


def read(out: Path) -> list[Report]:
    """The reports that lie in a folder, in the order of the experiments."""
    files = [out / f"{name}.json" for name in EXPERIMENTS]
    return [json.loads(file.read_text()) for file in files if file.exists()]
