"""The README's table and the documents of studies are generated from the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_readme_table_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.table", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.table"


def test_figure_of_correlated_runs_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.correlated_runs", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.correlated_runs"


def test_summary_of_attacked_runs_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.run_checks", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.run_checks"


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["abadi_2016", "bethune_2024", "davody_2020", "lee_kifer_2020"])
def test_the_page_of_a_paper_is_up_to_date(paper: str) -> None:
    command = [sys.executable, "-m", f"papers.{paper}", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, f"run: python -m papers.{paper}"
