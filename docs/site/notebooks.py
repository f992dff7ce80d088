"""Make the notebooks of the tutorials: run each script in ``docs/tutorials`` cell by cell, and keep what it prints.

    python docs/site/notebooks.py [NAME ...]

The scripts are what is edited and tested; a notebook has the same cells with their outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def main(names: list[str]) -> None:
    """Write a notebook beside each script, or beside those named."""
    for script in sorted(TUTORIALS.glob("*.py")):
        if not names or script.stem in names:
            nbformat.write(executed(script), script.with_suffix(".ipynb"))


def executed(script: Path) -> nbformat.NotebookNode:
    """The cells of a script with what they print; progress bars and warnings are left out."""
    notebook = jupytext.read(script)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := plain(output)) is not None]
    notebook.metadata.pop("language_info", None)
    nbformat.validate(notebook)
    return notebook


def plain(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """An output as text, or None for what is no result."""
    if output.output_type == "stream" and output.name == "stdout":
        return output
    if output.output_type == "execute_result":
        output.data = {"text/plain": output.data["text/plain"]}
        return output
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
