"""A benchmark report: the measurements of an experiment and the machine that they were made on, as JSON values."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.compile_caches import empty_compile_caches
from benchmarks.steps.experiments import Experiment
from benchmarks.steps.methods import OURS
from benchmarks.steps.private import uncaptured_is_an_error

Report = dict[str, Any]
_PACKAGES = ("torch", "opacus", "numpy", "noisette")


def measure(
    name: str, experiment: Experiment, settings: Settings, advance: Callable[[float], None]
) -> Iterator[Report]:
    """Measure all cells: the report so far, after each of them.

    ``advance`` is called with each part of a cell that is done, as a fraction of the cell.
    """
    cells: list[Report] = []
    with uncaptured_is_an_error(), empty_compile_caches(settings.threads):
        for cell in experiment.cells:
            cells.append(_measured(cell, experiment, settings, advance))
            yield _report(name, experiment, settings, cells)


def _report(name: str, experiment: Experiment, settings: Settings, cells: list[Report]) -> Report:
    return {
        "experiment": name,
        "title": experiment.title,
        "about": experiment.about,
        "unit": experiment.unit,
        "axis": experiment.axis,
        "hardware": hardware(settings.threads, settings.device),
        "dtype": settings.dtype,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "cells": list(cells),
    }


def _measured(cell: Cell, experiment: Experiment, settings: Settings, advance: Callable[[float], None]) -> Report:
    rows = experiment.measure(cell, experiment.methods, settings, advance)
    for key, plain in (("ratio", "plain"), ("ratio_compiled", "plain-compiled")):
        against = rows.get(plain, {}).get(experiment.unit)
        for row in rows.values():
            if against and experiment.unit in row:
                row[key] = row[experiment.unit] / against
    return {
        "model": cell.name,
        "title": cell.title,
        "batch": cell.batch,
        "image": cell.image,
        "target": cell.target,
        "target_compiled": cell.target_compiled,
        "methods": rows,
    }


def hardware(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Processor, device, number of threads, and versions."""
    return {
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": threads,
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cell_label(cell: dict[str, Any], *, without: str | None = None) -> str:
    """The name of a cell: model, image size and batch size, except the one on a figure's axis.

    >>> cell_label({"title": "ResNet-18", "image": 64, "batch": 20})
    'ResNet-18, 64 × 64, batch 20'
    >>> cell_label({"title": "MLP", "image": None, "batch": 128}, without="batch")
    'MLP'
    """
    parts = {
        "model": cell["title"],
        "image": f"{cell['image']} × {cell['image']}" if cell["image"] else "",
        "batch": f"batch {cell['batch']}",
    }
    return ", ".join(part for name, part in parts.items() if part and name != without)


def method_label(name: str) -> str:
    """The name of a method, with its library.

    >>> method_label("BookKeeping"), method_label("Opacus-hooks"), method_label("nxBP")
    ('noisette BookKeeping', 'Opacus hooks', 'nxBP')
    >>> method_label("plain"), method_label("plain-compiled"), method_label("captured")
    ('plain eager', 'plain compiled', 'noisette captured')
    """
    if name == "plain":
        return "plain eager"
    return f"noisette {name}" if name in OURS else name.replace("-", " ")
