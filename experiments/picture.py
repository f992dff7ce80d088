"""Write a picture of a documentation page, or check that its numbers are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def main(description: str, path: Path, picture: str, numbers: Callable[[str], list[str]]) -> None:
    """Write the picture; with --check only compare its numbers with those in the committed file."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(numbers(picture) != numbers(path.read_text(encoding="utf-8")))
    path.parent.mkdir(exist_ok=True)
    path.write_text(picture, encoding="utf-8")
