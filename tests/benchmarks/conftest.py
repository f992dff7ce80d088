from typing import Any

import pytest


def _cell(model: str, title: str, batch: int, rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": model, "title": title, "batch": batch, "image": None, "target": None, "methods": rows, **more}


@pytest.fixture
def report():
    """The report of an experiment with two cells: one method failed, and is unknown to this version."""
    rows = {
        "plain": {"seconds": 0.002, "each": [0.002], "ratio": 1.0},
        "BookKeeping": {"seconds": 0.003, "each": [0.003], "ratio": 1.5},
        "nxBP": {"seconds": 0.06, "each": [0.06], "ratio": 30.0},
        "Elsewhere": {"error": "MemoryError: 3 < 4"},
    }
    versions = {"torch": "2.10", "opacus": None}
    hardware = {"processor": "A processor", "device": "cpu", "threads": 2, "python": "3.12", "versions": versions}
    cells = [_cell("mlp", "MLP", 128, rows, target=1.5), _cell("resnet18", "ResNet-18", 4, rows, image=64)]
    about = {"experiment": "targets", "title": "Time per step", "about": "What it is about.", "unit": "seconds"}
    return about | {"axis": None, "rounds": 3, "hardware": hardware, "cells": cells}


@pytest.fixture
def compared(report):
    """A report with compiled plain training and a peer."""
    rows = {
        "plain": {"seconds": 0.002, "each": [0.002], "ready": 0.1, "ratio": 1.0, "ratio_compiled": 1.25},
        "plain-compiled": {"seconds": 0.0016, "each": [0.0016], "ready": 12.0, "ratio": 0.8, "ratio_compiled": 1.0},
        "compiled": {"seconds": 0.0024, "each": [0.0024], "ready": 21.0, "ratio": 1.2, "ratio_compiled": 1.5},
        "Opacus-ghost": {"seconds": 0.004, "each": [0.004], "ready": 0.2, "ratio": 2.0, "ratio_compiled": 2.5},
    }
    cells = [_cell("mlp", "MLP", batch, rows, target=1.1, target_compiled=1.0) for batch in (128, 1024)]
    return report | {"cells": cells}
