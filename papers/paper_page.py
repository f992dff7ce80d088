"""Write the page and the figures of a paper from its committed runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from papers.drawing import standalone
from papers.paper import Paper
from papers.run_file import RUNS

PAPERS = Path(__file__).parent


def main(paper: Paper[Any], description: str, origin: str) -> None:
    """Write the page; with --check, exit with 0 if it is up to date."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    folder = PAPERS / paper.name.replace("-", "_")
    document = folder / "README.md"
    text = paper.document(sections := paper.drawn(list(paper.parts), folder / RUNS), origin)
    if options.check:
        sys.exit(text != document.read_text(encoding="utf-8"))
    document.write_text(text, encoding="utf-8")
    for section in sections:
        if section.figure:
            (folder / f"{section.name}.svg").write_text(standalone(section.figure), encoding="utf-8")
