"""A rank that dies, hangs or refuses: the others stop in time, and the ledger counts all that was released."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from noisette import Ledger
from process_group import Outcome, alone, on_ranks
from ranks_failures import PLACES, STEPS, die, hang, refuse, resume, run_out_of_memory, train

TIMEOUT, PATIENCE = 6.0, 20.0  # seconds; the second is for ranks that come, on a busy machine too


def spent(folder: Path) -> int:
    """The number of steps that the ledger counts, after a last line that was cut off is dropped."""
    Ledger.repair(folder / "ledger.jsonl")
    return sum(Ledger.read(folder / "ledger.jsonl").events.values())


def released(folder: Path) -> int:
    """The largest number of steps that a rank has released."""
    return max(len(path.read_bytes()) for path in folder.glob("released-*"))


def check_stopped(outcomes: list[Outcome], victim: int) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.error == "PrivacyError", outcome
            assert outcome.exit_code == 0


STRUCK = [(place, victim) for victim in (0, 1) for place in PLACES]
QUICK = {("after the commit", 0), ("after the parts are gathered", 0), ("in a microbatch", 1), ("in the noise", 0)}


@pytest.mark.parametrize(
    ("place", "victim"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(map(str, case)))
        for case in STRUCK
    ],
)
def test_a_killed_rank_leaves_nothing_uncounted(place: str, victim: int, tmp_path: Path) -> None:
    outcomes = on_ranks(2, train, tmp_path, place, victim, die, PATIENCE)
    assert outcomes[victim].exit_code == -9
    check_stopped(outcomes, victim)
    assert released(tmp_path) <= spent(tmp_path) <= STEPS
    taken, lost = alone(resume, tmp_path) if victim else on_ranks(3, resume, tmp_path)[1].value
    assert taken + lost == STEPS == spent(tmp_path)


def test_a_rank_that_hangs_is_waited_for_until_the_timeout(tmp_path: Path) -> None:
    begun = time.monotonic()
    outcomes = on_ranks(3, train, tmp_path, "in a microbatch", 1, hang, TIMEOUT, hanging=1)
    assert time.monotonic() - begun < 4 * TIMEOUT
    check_stopped(outcomes, 1)
    assert "did not come within" in outcomes[0].text
    assert released(tmp_path) <= spent(tmp_path)


@pytest.mark.parametrize(
    ("place", "strike"),
    [("in a microbatch", run_out_of_memory), ("after the commit", refuse), ("in a checkpoint", refuse)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_error_on_one_rank_ends_all(place: str, strike: object, tmp_path: Path) -> None:
    outcomes = on_ranks(2, train, tmp_path, place, 0, strike, PATIENCE)
    assert outcomes[0].error in ("ValueError", "MemoryError")
    assert outcomes[1].error, "it went on"
    if place == "after the commit":  # there the ranks meet, so the other one is told why
        assert outcomes[1].error == outcomes[0].error
        assert "this rank" in outcomes[1].text
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert released(tmp_path) <= spent(tmp_path) <= STEPS
