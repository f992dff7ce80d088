"""The README's table is the one that the committed results make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_table_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.table", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.table"
