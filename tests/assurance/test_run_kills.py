"""Runs whose processes are killed at random moments spend no more than planned; the ledger records every step."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import small_run
from noisette import Ledger, RdpAccountant

REPRICE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reprice.py"))
KILLED = -9


def killed_runs(place: Path, kills: int) -> list[Path]:
    command = [sys.executable, small_run.__file__, str(place), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(place.iterdir())


def check_spending(folder: Path) -> int:
    """Every step is in the ledger, and each kill costs at most one lease. Returns the number of releases."""
    ended = list(map(int, (folder / "ended").read_text().split()))
    assert set(ended) <= {KILLED, 0}
    calls, path = small_run.size(folder / "calls"), folder / "ledger.jsonl"
    if not path.exists():
        assert calls == 0
        return 0
    Ledger.repair(path)
    events = Ledger.read(path).events
    assert calls <= sum(events.values()) <= min(calls + ended.count(KILLED) * small_run.LEASE, small_run.STEPS)
    if calls:
        happened = dict.fromkeys(events, calls)
        paid, true = (RdpAccountant().compose(known).epsilon(delta=1e-3) for known in (events, happened))
        assert paid >= true > 0
    return calls


@pytest.mark.slow
def test_twenty_kills_at_random_never_hide_a_step(tmp_path: Path) -> None:
    assert sum(check_spending(folder) for folder in killed_runs(tmp_path, 20)) > 100


@pytest.mark.slow
def test_two_hundred_kills_at_random_never_hide_a_step(tmp_path: Path) -> None:
    folders = killed_runs(tmp_path, 200)
    assert sum(check_spending(folder) for folder in folders) > 2000
    for folder in folders[:5]:
        events = Ledger.read(folder / "ledger.jsonl").events
        priced = REPRICE["epsilon_of"](str(folder / "ledger.jsonl"), 1e-3)
        assert priced <= RdpAccountant().compose(events).epsilon(delta=1e-3), "another tool, and a tighter accountant"
        assert priced > 0
