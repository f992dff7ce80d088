"""A rank that dies, hangs or refuses: the others stop in time, and the ledger counts all that was released."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from noisette import Ledger, PerExampleClip, PrivateRun, Ranks
from noisette.core.batches import PoissonSampler
from noisette.core.noise import GaussianNoise
from noisette.ranks.shards import Shards
from process_group import Outcome, alone, on_ranks
from ranks_loop import RECORDS, TERMS, network, records
from small_loop import loss, start

STEPS = 8
# Where a rank may be struck: as a method begins, or "after" it.
PLACES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("before the reservation", "after the reservation"), (Ledger, "reserve")),
    **dict.fromkeys(("before the commit", "after the commit"), (Ledger, "commit")),
    **dict.fromkeys(("before the parts are gathered", "after the parts are gathered"), (Ranks, "gather_into")),
    **dict.fromkeys(("in a checkpoint", "after a checkpoint"), (PrivateRun, "save")),
    "before the batch is drawn": (PoissonSampler, "indices"),
    "in a microbatch": (PerExampleClip, "add"),
    "before the sums are joined": (Ranks, "add_up"),
    "in the noise": (GaussianNoise, "add_"),
    "behind the release": (PrivateRun, "_after_step"),
}
PLACES_OF_SHARDS: dict[str, tuple[type, str]] = {
    "before shards are gathered": (Shards, "gathered"),
    "before shards are summed": (Shards, "land"),
    "before shards are saved": (DTensor, "full_tensor"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> None:
    time.sleep(1e6)


def refuse() -> None:
    raise ValueError("this rank refuses")


def run_out_of_memory() -> None:
    raise MemoryError("no memory on this rank")


@contextmanager
def struck(place: str, rank: int, strike: Callable[[], None], *, at: int) -> Iterator[None]:
    """Within it this rank is struck when it comes to a place for the ``at``-th time."""
    (kind, name), after = (PLACES | PLACES_OF_SHARDS)[place], place.startswith("after ")
    with pytest.MonkeyPatch.context() as patch:
        whole, calls = getattr(kind, name), []

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            result = whole(self, *args, **kwargs) if after else None
            if len(calls) == at:
                strike()
            return result if after else whole(self, *args, **kwargs)

        if dist.get_rank() == rank:
            patch.setattr(kind, name, method)
        yield


def train(folder: Path, place: str, victim: int, strike: Callable[[], None], timeout: float) -> int:
    """Train with checkpoints until one rank is struck; return the number of steps taken.

    A file for each rank gets one byte for every release, right after it.
    """
    with struck(place, victim, strike, at=3):
        declared = {"sampling_rate": 0.3, "expected_batch_size": 0.3 * RECORDS} | TERMS | {"steps": STEPS}
        ledger, ranks, model = folder / "ledger.jsonl", Ranks(timeout=timeout), network()
        if place in PLACES_OF_SHARDS:
            fully_shard(model)
        with start(model, records(), ledger=ledger, ranks=ranks, **declared) as run:
            run.save(folder / "checkpoint")  # a rank may be struck in its first step
            return go_on(run, folder)


def go_on(run: PrivateRun, folder: Path) -> int:
    rank = dist.get_rank() if dist.is_initialized() else 0
    with (folder / f"released-{rank}").open("ab", buffering=0) as released:
        for batch in run.batches():
            for x, y in batch.microbatches(5):
                run.accumulate(loss, x, y)
            run.optimizer.step()
            released.write(b".")
            run.save(folder / "checkpoint")
    return run.steps_taken


def resume(folder: Path) -> tuple[int, int]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateRun.resume(folder / "checkpoint", PerExampleClip(model, 0.5), optimizer, records()) as run:
        go_on(run, folder)
        return run.steps_taken, run.steps_lost


TIMEOUT, PATIENCE = 6.0, 20.0  # seconds; the second is for ranks that come, on a busy machine too


def spent(folder: Path) -> int:
    Ledger.repair(folder / "ledger.jsonl")
    return sum(Ledger.read(folder / "ledger.jsonl").events.values())


def released(folder: Path) -> int:
    return max((len(path.read_bytes()) for path in folder.glob("released-*")), default=0)


def check_stopped(outcomes: list[Outcome], victim: int) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.error == "PrivacyError", outcome
            assert outcome.exit_code == 0


STRUCK = [(place, victim) for victim in (0, 1) for place in PLACES]
QUICK = {("after the commit", 0), ("after the parts are gathered", 0), ("in a microbatch", 1)}


@pytest.mark.parametrize(
    ("place", "victim"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in STRUCK]
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


STRUCK_SHARDS = [(place, strike) for place in PLACES_OF_SHARDS for strike in (stop, die)]
QUICK_SHARDS = {("before shards are gathered", die), ("before shards are summed", stop)}


@pytest.mark.parametrize(
    ("place", "strike"),
    [pytest.param(*c, marks=() if c in QUICK_SHARDS else pytest.mark.slow) for c in STRUCK_SHARDS],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_rank_of_a_sharded_model_is_waited_for_until_the_timeout(place, strike, tmp_path) -> None:
    """Their own process group waits for half an hour, longer than ``on_ranks``."""
    outcomes = on_ranks(2, train, tmp_path, place, 1, strike, TIMEOUT if strike is stop else PATIENCE, hanging=1)
    check_stopped(outcomes, 1)
    assert "rank 0 met no answer at the " in outcomes[0].text
    assert "start the run again from its checkpoint" in outcomes[0].text
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
