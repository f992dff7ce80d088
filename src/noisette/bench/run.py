"""An experiment carried out, as the report that is written to disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from noisette.bench.cell import Cell, Settings
from noisette.bench.experiments import Experiment
from noisette.bench.hardware import hardware

Report = dict[str, Any]  # what JSON can hold


def run(name: str, experiment: Experiment, settings: Settings, advance: Callable[[float], None]) -> Report:
    """Measure all cells; ``advance`` is told of each part of a cell that is done, as a fraction of the cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a peer says about itself
        cells = [_measured(cell, experiment, settings, advance) for cell in experiment.cells]
    return {
        "experiment": name,
        "title": experiment.title,
        "about": experiment.about,
        "unit": experiment.unit,
        "axis": experiment.axis,
        "hardware": hardware(settings.threads, settings.device),
        "rounds": settings.rounds,
        "cells": cells,
    }


def _measured(cell: Cell, experiment: Experiment, settings: Settings, advance: Callable[[float], None]) -> Report:
    rows = experiment.measure(cell, experiment.methods, settings, advance)
    plain = rows["plain"].get(experiment.unit)
    for row in rows.values():
        if plain and experiment.unit in row:
            row["ratio"] = row[experiment.unit] / plain
    return {
        "model": cell.name,
        "title": cell.title,
        "batch": cell.batch,
        "image": cell.image,
        "target": cell.target,
        "methods": rows,
    }
