"""The document and the figures of a paper, made from its committed runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from noisette.report.svg import standalone
from noisette.reproduce.paper import Paper
from noisette.reproduce.run_file import RUNS

ROOT = Path(__file__).parent.parent


def main(paper: Paper[Any], description: str, origin: str) -> None:
    """Write the document, or with --check say by the exit code whether it is up to date."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    document = ROOT / "docs" / f"{paper.name}.md"
    sections = paper.drawn(list(paper.parts), ROOT / "experiments" / paper.name / RUNS)
    folder = document.with_suffix("")
    text = paper.document(sections, folder.name, origin)
    if options.check:
        sys.exit(text != document.read_text(encoding="utf-8"))
    folder.mkdir(exist_ok=True)
    document.write_text(text, encoding="utf-8")
    for section in sections:
        if section.figure:
            (folder / f"{section.name}.svg").write_text(standalone(section.figure), encoding="utf-8")
