"""Write docs/abadi-2016.md and its figures from the committed runs.

    python -m experiments.abadi_2016 [--check]

With --check nothing is written, and the exit code says whether the document is up to date. The runs are made by
`noisette reproduce abadi-2016 --figure N --out experiments/abadi-2016`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from noisette.report.svg import standalone
from noisette.reproduce.abadi_2016.figures import FIGURES, RUNS, document, drawn

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "experiments" / "abadi-2016" / RUNS
DOCUMENT = ROOT / "docs" / "abadi-2016.md"
_ORIGIN = (
    "To make a figure yourself: `noisette reproduce abadi-2016 --figure N`. It says how long that takes, and goes on "
    "where it was stopped. This page is made by `python -m experiments.abadi_2016` from the runs in "
    "`experiments/abadi-2016/runs.jsonl`, one line each, which that command has made with `--out "
    "experiments/abadi-2016`. Times are those of one thread on a machine that had other work too."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sections = drawn(list(FIGURES), COMMITTED)
    folder = DOCUMENT.with_suffix("")
    text = document(sections, folder.name, _ORIGIN)
    if options.check:
        sys.exit(text != DOCUMENT.read_text(encoding="utf-8"))
    folder.mkdir(exist_ok=True)
    DOCUMENT.write_text(text, encoding="utf-8")
    for section in sections:
        (folder / f"{section.name}.svg").write_text(standalone(section.figure), encoding="utf-8")


if __name__ == "__main__":
    main()
