"""Write papers/lee_kifer_2020/README.md and its figures from the committed measurements.

    python -m papers.lee_kifer_2020 [--check]

With --check nothing is written; the exit code is 0 if the page is up to date. The measurements are made by
`python -m papers lee-kifer-2020 --figure N --out papers/lee_kifer_2020`, or with --table memory.
"""

from __future__ import annotations

from papers.lee_kifer_2020.parts import PAPER
from papers.paper_page import main

_ORIGIN = (
    "To remake a part: `python -m papers lee-kifer-2020 --figure 5` (to 9), or `--table memory`. The command measures "
    "with the code of `python -m benchmarks`, and after an interruption it continues with the missing networks and "
    "sizes; `OMP_NUM_THREADS` sets the threads, and `--full` adds what takes a GPU. This page is written by `python -m "
    "papers.lee_kifer_2020` from `papers/lee_kifer_2020/runs.jsonl`, one line per network and size, which that command "
    "wrote with `--out papers/lee_kifer_2020`."
)

if __name__ == "__main__":
    main(PAPER, __doc__ or "", _ORIGIN)
