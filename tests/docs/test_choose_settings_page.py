"""The code of the page on settings runs, and its tables are those of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.tables_rates import networks_table, rates_table

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


@pytest.mark.parametrize(("name", "table"), [("rates", rates_table), ("networks", networks_table)])
def test_tables_are_those_of_the_results(name: str, table: Any) -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / f"tables-{name}.json").read_text())
    shown = PAGE.partition(f"<!-- {name}:")[2].partition("-->\n")[2].partition(f"<!-- end of {name}")[0]
    assert shown.strip() == table(results)
