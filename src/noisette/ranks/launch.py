"""The ranks of a run: chosen, launched, and kept in step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist

from noisette.core.batches import OtherRankRanOut
from noisette.core.release import Alone
from noisette.errors import PrivacyError
from noisette.ranks.process_group import Ranks

AnyRanks: TypeAlias = Alone | Ranks
"""The processes of a run."""


def ranks_of(given: AnyRanks | None) -> AnyRanks:
    """The ranks that were given, or all processes of the default group, or this process alone.

    Raises:
        PrivacyError: several processes were started together, and nothing says how they belong together.
    """
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks()
    if were_started_together():
        raise PrivacyError(
            "several processes were started together, and each would spend the privacy budget of a run of its own: "
            "call torch.distributed.init_process_group() for all of them before privatize, or pass "
            "ranks=noisette.Alone() for runs that are separate on purpose"
        )
    return Alone()


# Variables in which launchers tell how many processes they have started together.
_SIZES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@contextmanager
def in_step(ranks: AnyRanks, phase: str) -> Iterator[None]:
    """A context that ends on all ranks or on none, as ``unanimous``, and where memory runs out on one, on all.

    Raises:
        torch.OutOfMemoryError: memory ran out here.
        OtherRankRanOut: it ran out on another rank; all ranks may go on.
    """
    ran_out: torch.OutOfMemoryError | None = None
    with ranks.unanimous(phase):
        try:
            yield
        except torch.OutOfMemoryError as error:
            ran_out = error
    if ranks.largest(phase, {"ran out": ran_out is not None})["ran out"]:
        raise ran_out or OtherRankRanOut("memory ran out on another rank")


def were_started_together() -> bool:
    """Whether torchrun, or another launcher, started this process beside others."""
    launched = "RANK" in os.environ and _number("WORLD_SIZE") > 1
    return launched or any(_number(name) > 1 for name in _SIZES)


def refuse_several_processes(what: str) -> None:
    """Check that this process is alone: each of several would do the same."""
    if were_started_together() or (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        raise PrivacyError(f"{what} is not made for several processes, each of which would make one: start one process")


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 1


@contextmanager
def launched() -> Iterator[AnyRanks]:
    """The ranks that torchrun started, in a process group that ends with the context; otherwise this process alone.

    Each rank of a machine takes a GPU of its own, if there are any. No thread of the process group outlives the
    context: one that still frees a tensor while the interpreter ends aborts the process.
    """
    if not were_started_together():
        yield Alone()
        return
    # Functions of this module have the default group as a default argument: imported later, they would keep it.
    from torch.distributed import nn  # noqa: F401

    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    try:
        ranks = Ranks()
        try:
            yield ranks
        finally:
            ranks.close()
    finally:
        dist.destroy_process_group()
