"""Write docs/bethune-2024.md and its figures from the committed runs.

    python -m experiments.bethune_2024 [--check]

With --check nothing is written, and the exit code says whether the document is up to date. The runs are made by
`noisette reproduce bethune-2024 --table NAME or --figure NAME --out experiments/bethune-2024`.
"""

from __future__ import annotations

from experiments.paper_page import main
from noisette.reproduce.bethune_2024.parts import PAPER

_ORIGIN = (
    "To make a part yourself: `noisette reproduce bethune-2024 --figure pareto`, or robustness or speed, or `--table "
    "tabular`, or digits. It says how long that takes, and goes on where it was stopped. This page is made by `python "
    "-m experiments.bethune_2024` from the runs in `experiments/bethune-2024/runs.jsonl`, one line each, which that "
    "command has made with `--out experiments/bethune-2024`."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
