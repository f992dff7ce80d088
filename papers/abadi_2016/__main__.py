"""Write papers/abadi_2016/README.md and its figures from the committed runs.

    python -m papers.abadi_2016 [--check]

With --check nothing is written, and the exit code says whether the document is up to date. The runs are made by
`python -m papers abadi-2016 --figure N --out papers/abadi_2016`.
"""

from __future__ import annotations

from papers.abadi_2016.figures import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To make a figure yourself: `python -m papers abadi-2016 --figure N`. It says how long that takes, and goes on "
    "where it was stopped. This page is made by `python -m papers.abadi_2016` from the runs in "
    "`papers/abadi_2016/runs.jsonl`, one line each, which that command has made with `--out "
    "papers/abadi_2016`. Times are those of one thread on a machine that had other work too."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
