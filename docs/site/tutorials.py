"""Each notebook in ``docs/tutorials`` becomes a page of the site, with its outputs. ``notebooks.py`` makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, in the order of their numbers."""
    for notebook in sorted((Path(config.docs_dir) / "tutorials").glob("*.ipynb")):
        page = f"tutorials/{notebook.stem}.md"
        files.append(File.generated(config, page, content=tutorial(notebook)))
        config.nav[1]["Tutorials"].append(page)  # pyright: ignore[reportOptionalSubscript]
    return files


def tutorial(notebook: Path) -> str:
    """The cells of a notebook as Markdown, and where to get it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    run = f"[Download the notebook]({notebook.name}), or run `python docs/tutorials/{notebook.stem}.py`."
    return "\n\n".join([*(part for cell in cells for part in _parts(cell)), run])


def _parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    outputs = [output["text"] if "text" in output else output["data"]["text/plain"] for output in cell["outputs"]]
    said = "".join("".join(output) for output in outputs).rstrip()
    return [f"```python\n{source}\n```", *([f"```text\n{said}\n```"] if said else [])]
