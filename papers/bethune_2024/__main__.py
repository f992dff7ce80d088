"""Write papers/bethune_2024/README.md and its figures from the committed runs.

    python -m papers.bethune_2024 [--check]

With --check nothing is written, and the exit code says whether the document is up to date. The runs are made by
`python -m papers bethune-2024 --table NAME or --figure NAME --out papers/bethune_2024`.
"""

from __future__ import annotations

from papers.bethune_2024.parts import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To make a part yourself: `python -m papers bethune-2024 --figure pareto`, or robustness or speed, or `--table "
    "tabular`, or digits. It says how long that takes, and goes on where it was stopped. This page is made by `python "
    "-m experiments.bethune_2024` from the runs in `papers/bethune_2024/runs.jsonl`, one line each, which that "
    "command has made with `--out papers/bethune_2024`."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
