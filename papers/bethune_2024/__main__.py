"""Write papers/bethune_2024/README.md and its figures from the committed runs.

    python -m papers.bethune_2024 [--check]

With --check nothing is written; the exit code is 0 if the page is up to date. The runs are made by
`python -m papers bethune-2024 --table NAME --out papers/bethune_2024`, or with --figure NAME.
"""

from __future__ import annotations

from papers.bethune_2024.parts import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To reproduce a part: `python -m papers bethune-2024 --figure pareto` (or robustness, speed), or `--table tabular` "
    "(or best, digits, summary). The command shows how long it takes, and after an interruption it continues with the "
    "missing runs. This page is written by `python -m papers.bethune_2024` from "
    "`papers/bethune_2024/runs.jsonl`, one line "
    "per run, which that command wrote with `--out papers/bethune_2024`."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
