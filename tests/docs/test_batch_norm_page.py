"""The page about batch norm: its code runs, and the library gives its numbers and its picture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "batch-norm.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_code_of_the_page_gives_the_numbers_that_it_states() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)
    assert "(31.0, -32.0)" in BLOCKS[1]
    assert "(31.0, 30.0)" in BLOCKS[1]
    assert names["mixture"] == (31.0, -32.0)
    assert names["public"] == (31.0, 30.0)


def test_the_picture_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.batch_norm", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.batch_norm"
