"""The code of the page on correlated noise runs, and its figure and table are those of the experiment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.correlated_noise import BANDS, SETTINGS, errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "correlated-noise.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_loop_trains_within_its_budget() -> None:
    found: dict[str, Any] = {}
    exec(BLOCKS[0], found)
    assert 5.9 < found["epsilon"] <= 6.0
    with found["torch"].no_grad():
        right = (found["model"](found["inputs"]).argmax(1) == found["targets"]).float().mean()
    assert right > 0.7


def test_the_errors_for_ones_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[1], {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(bands) for bands, _ in rows] == [1, 2, 4, 8, 16]
    assert float(rows[3][1]) < 0.8 * float(rows[0][1])


@pytest.mark.parametrize(("place", "epsilon"), [(0, 8.0), (1, 1.0)])
def test_the_table_has_the_best_number_of_bands(place: int, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.correlated_noise.BANDS", BANDS[::3] if place else (1, 20, 32, 48))
    of_bands = errors(*list(SETTINGS.values())[place], epsilon)
    best = min(of_bands, key=lambda bands: of_bands[bands])
    row = [line for line in PAGE.splitlines() if re.match(r"\| \d+ %, \d+ \|", line)][place]
    assert f"{best} band{'s' if best > 1 else ''}: {of_bands[best]:.2f}" in row


@pytest.mark.slow
def test_the_figure_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.correlated_noise", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.correlated_noise"
