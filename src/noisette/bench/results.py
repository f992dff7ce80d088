"""The files of a benchmark: one JSON and one figure for each experiment, and a page that shows them all."""

from __future__ import annotations

import json
import os
from pathlib import Path

from noisette.bench.experiments import EXPERIMENTS
from noisette.bench.figures import figure, standalone
from noisette.bench.page import page
from noisette.bench.run import Report

PAGE = "bench.html"


def write(report: Report, out: Path) -> None:
    """Write an experiment's files, and the page anew with all experiments that the folder holds.

    Guarantee: no file is ever half-written; each takes the place of an older one when it is whole.
    """
    name = report["experiment"]
    _write_whole(out / f"{name}.json", json.dumps(report, indent=1) + "\n")
    _write_whole(out / f"{name}.svg", standalone(figure(report)))
    _write_whole(out / PAGE, page(read(out)))


def read(out: Path) -> list[Report]:
    """The reports that lie in a folder, in the order of the experiments."""
    files = [out / f"{name}.json" for name in EXPERIMENTS]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
