"""What cells and methods are called before readers."""

from __future__ import annotations

from typing import Any

from noisette.bench.methods import ENGINES


def cell_label(cell: dict[str, Any], *, without: str | None = None) -> str:
    """A cell of a report: model, image size and batch size, less the one that a figure's axis shows.

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
    """A method, with the library that it belongs to.

    >>> method_label("BookKeeping"), method_label("Opacus-hooks"), method_label("nxBP")
    ('noisette BookKeeping', 'Opacus hooks', 'nxBP')
    """
    return f"noisette {name}" if name in ENGINES else name.replace("-", " ")
