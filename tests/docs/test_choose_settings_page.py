"""The code of the page on settings runs, and its table is that of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from experiments.marked import replaced
from experiments.tables_rates import BEGIN, END, rates_table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "choose-settings.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_code_runs_and_gives_the_stated_numbers() -> None:
    names: dict[str, Any] = {"__name__": "a_users_module"}
    exec(BLOCKS[0], names)
    assert (names["batches"].expected_batch_size, round(names["batches"].epochs, 1)) == (4001, 66.7)
    assert f"{names['delta']:.1e}" == "3.3e-06"
    exec(BLOCKS[1], names)
    with names["run"] as run:
        assert run.steps == 500
        assert run.terms.epsilon == 3.0
    assert 0 < names["optimizer"].param_groups[0]["lr"] < 30


def test_table_is_that_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "tables-rates.json").read_text())
    assert replaced(PAGE, BEGIN, END, rates_table(results)) == PAGE, "run: python -m experiments.tables_rates --page"
