"""Write papers/abadi_2016/README.md and its figures from the committed runs.

    python -m papers.abadi_2016 [--check]

With --check nothing is written; the exit code is 0 if the page is up to date. The runs are made by
`python -m papers abadi-2016 --figure N --out papers/abadi_2016`.
"""

from __future__ import annotations

from papers.abadi_2016.figures import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To reproduce a figure: `python -m papers abadi-2016 --figure N`. The command shows how long it takes, and after "
    "an interruption it continues with the missing runs. This page is written by `python -m papers.abadi_2016` from "
    "`papers/abadi_2016/runs.jsonl`, one line per run, which that command wrote with `--out papers/abadi_2016`. Times "
    "are those of one thread on a shared machine."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
