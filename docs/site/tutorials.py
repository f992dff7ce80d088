"""Tutorials are scripts with cells; each becomes a page of the site."""

from __future__ import annotations

from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each script in ``docs/tutorials``."""
    for script in sorted((Path(config.docs_dir) / "tutorials").glob("*.py")):
        page = f"tutorials/{script.stem}.md"
        files.append(File.generated(config, page, content=tutorial(script)))
        config.nav[1]["Tutorials"].append(page)  # pyright: ignore[reportOptionalSubscript]
    return files


def tutorial(script: Path) -> str:
    """The cells of a script as Markdown."""
    notebook = jupytext.read(script)
    cells = [_fenced(cell.source) if cell.cell_type == "code" else cell.source for cell in notebook.cells]
    run = f"Run it: `python docs/tutorials/{script.name}`."
    return "\n\n".join([*cells, run])


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
