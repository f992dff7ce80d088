"""A small run that saves checkpoints in a folder from which it can be resumed; faults are tried on it.

    python small_run.py PLACE KILLS

begins such runs in PLACE/0, PLACE/1, ..., kills each process at a random moment and resumes the run in another one,
until KILLS processes were killed. Each call of the mechanism adds a byte to a file "calls" before its noise is drawn,
so that the number of calls is known from outside; the file "ended" holds the exit code of each process.
"""

import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisette import Ledger, PerExampleClip, PrivateRun, RdpAccountant, privatize
from noisette.core.release import GaussianRelease

STEPS, LEASE = 300, 15
NUMBERS = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
DECLARED = {"sampling_rate": 0.2, "expected_batch_size": 18, "steps": STEPS, "noise_multiplier": 2.0}


def parts() -> tuple[PerExampleClip, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return PerExampleClip(model, 1.0), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def begin(folder: Path, dataset: Tensor = NUMBERS) -> PrivateRun:
    ledger = Ledger(folder / "ledger.jsonl", dataset="mine")
    try:
        return privatize(*parts(), dataset, ledger=ledger, accountant=RdpAccountant(), **DECLARED)
    except BaseException:
        ledger.close()
        raise


def go_on(folder: Path, dataset: Tensor = NUMBERS) -> PrivateRun:
    return PrivateRun.resume(folder / "saved", *parts(), dataset, accountant=RdpAccountant())


def take_steps(run: PrivateRun, steps: int = STEPS, *, save_to: Path | None = None, every: int = 7) -> None:
    """Take this many steps, or those that are left; save the run before the first and after every few."""
    if save_to is not None:
        run.save(save_to)
    for taken, batch in enumerate(run.batches(), 1):
        for x in batch.microbatches(50):
            run.accumulate(squares, x)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if save_to is not None and taken % every == 0:
            run.save(save_to)
        if taken == steps:
            return


def live(folder: Path) -> None:
    resumed = (folder / "saved" / "checkpoint.safetensors").exists()
    if (folder / "ledger.jsonl").exists():
        Ledger.repair(folder / "ledger.jsonl")
    with go_on(folder) if resumed else begin(folder) as run:
        take_steps(run, save_to=folder / "saved")


def count_calls(path: Path) -> None:
    whole, file = GaussianRelease.__call__, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def call(self: GaussianRelease, *args: Any, **kwargs: Any) -> None:
        os.write(file, b"c")
        whole(self, *args, **kwargs)

    GaussianRelease.__call__ = call


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_at_random(child: int, calls: Path, moments: random.Random) -> int:
    """Kill a process, one in five as it begins, the others shortly after some of its steps; return its exit code."""
    if moments.random() > 0.2:
        wanted = size(calls) + moments.randint(0, 90)
        while size(calls) < wanted and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.01))
    else:
        time.sleep(moments.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_to_its_end(folder: Path, moments: random.Random, kills: int) -> int:
    """Start one process after the other until the run is complete or ``kills`` were killed; return how many were."""
    folder.mkdir()
    ended: list[int] = []
    while 0 not in ended and len(ended) < kills:
        child = os.fork()
        if child == 0:
            count_calls(folder / "calls")
            try:
                live(folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        ended.append(kill_at_random(child, folder / "calls", moments))
    (folder / "ended").write_text(" ".join(map(str, ended)))
    return ended.count(-signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, left, moments = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder))  # what is imported on the way is there for all processes
    for number in itertools.count():
        left -= run_to_its_end(place / str(number), moments, left)
        if left <= 0:
            break
