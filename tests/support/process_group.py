"""Several processes with a process group, for tests: each runs the same function, and what it returns comes back."""

import multiprocessing
import os
import pickle
import queue
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from noisette.core.noise import SecretKey

SECRET = bytes(range(32))
PLANTED: tuple[Callable[[pytest.MonkeyPatch], None], ...] = ()
"""Faults that each rank plants before it works, which can be pickled."""
TIMEOUT = 120.0  # seconds for all ranks together; a test that takes them has found ranks that wait for each other


@dataclass(frozen=True)
class Outcome:
    """What became of one rank: what it returned or raised, and the exit code of its process."""

    returned: Any = None
    error: str = ""  # the name of the error's type
    text: str = ""  # of the error
    exit_code: int | None = None  # minus the signal that ended it

    @property
    def value(self) -> Any:
        """What the rank returned; an AssertionError if it raised, or was killed, also after it had returned."""
        assert not self.error, f"{self.error}: {self.text}"
        assert self.exit_code == 0, f"exit code {self.exit_code}"
        return self.returned


def on_ranks(
    size: int, work: Callable[..., Any], *args: Any, known_key: bool = False, hanging: int | None = None
) -> list[Outcome]:
    """Call a function of a module in so many new processes, which form a process group of gloo.

    What the function returns can be pickled. With a ``known_key`` the key of runs is ``SECRET``. The rank that is
    ``hanging`` is killed as soon as all others have ended.
    """
    context = multiprocessing.get_context("forkserver")  # copies a process that has done nothing but imports
    context.set_forkserver_preload(["pytest", "ranks_loop", "torch.distributed", "torch._dynamo", "torch._inductor"])
    results = context.Queue()
    outcomes: dict[int, Outcome] = {}
    with tempfile.TemporaryDirectory() as place:
        given = size, f"file://{place}/store", results, known_key, PLANTED, work, args
        started = [context.Process(target=_rank, args=(rank, *given), daemon=True) for rank in range(size)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # where that process finds its imports
            for process in started:
                process.start()
        until = time.monotonic() + TIMEOUT
        while any(process.is_alive() for process in started):
            _receive(results, outcomes)
            others_ended = not any(process.is_alive() for rank, process in enumerate(started) if rank != hanging)
            if time.monotonic() > until or (hanging is not None and others_ended):
                for process in started:
                    process.kill()
        _receive(results, outcomes)
    found = [outcomes.get(rank, Outcome()) for rank in range(size)]
    return [replace(one, exit_code=process.exitcode) for one, process in zip(found, started, strict=True)]


def alone(work: Callable[..., Any], *args: Any) -> Any:
    """What the function returns in this process, without a process group and with the key ``SECRET``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, SECRET))
        torch.manual_seed(0)
        return work(*args)


def _receive(results: Any, outcomes: dict[int, Outcome]) -> None:
    try:
        while True:
            rank, outcome = results.get(timeout=0.05)
            outcomes[rank] = pickle.loads(outcome)
    except queue.Empty:
        pass


def _rank(rank, size, store, results, known_key, planted, work, args) -> None:
    os.environ["NOISETTE_COMPILE"] = "0"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    patch = pytest.MonkeyPatch()
    if known_key:
        patch.setattr("noisette.ranks.process_group.SecretKey", lambda secret: SecretKey(SECRET))
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    for plant in planted:
        plant(patch)
    try:
        outcome = Outcome(work(*args))
    except Exception as error:
        outcome = Outcome(error=type(error).__name__, text="".join(traceback.format_exception(error)))
    results.put((rank, pickle.dumps(outcome)))  # tensors with their values, not as memory that is shared
    results.close()
    results.join_thread()
    dist.destroy_process_group()


def assert_refused(outcomes: Sequence[Outcome], said: str, error: str = "PrivacyError") -> None:
    """All ranks ended with this error, which says so."""
    for outcome in outcomes:
        assert (outcome.error, said in outcome.text.replace("\n", " ")) == (error, True), outcome
