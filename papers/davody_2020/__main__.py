"""Write papers/davody_2020/README.md and its figures from the committed runs.

    python -m papers.davody_2020 [--check]

With --check nothing is written, and the exit code tells whether the document is up to date. The runs are made by
`python -m papers davody-2020 --table N or --figure N --out papers/davody_2020`.
"""

from __future__ import annotations

from papers.davody_2020.parts import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To reproduce a table: `python -m papers davody-2020 --table N`. The command reports how long that takes, and "
    "continues where it was stopped. This page is made by `python -m papers.davody_2020` from the runs in "
    "`papers/davody_2020/runs.jsonl`, one line each, which that command wrote with `--out "
    "papers/davody_2020`. Times are those of one thread on a shared machine."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
