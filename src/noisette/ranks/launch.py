"""The ranks of a run: chosen, launched, and kept in step."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from noisette.core.batches import OtherRankRanOut
from noisette.core.noise import SecretKey
from noisette.errors import PrivacyError
from noisette.ranks.process_group import Ranks


class Alone:
    """A run of this process alone, also where others were started beside it.

    Such processes are separate runs: on the same records each needs a ledger of its own data, or one after another the
    same one, and their costs add up.
    """

    rank = 0
    size = 1

    def key(self) -> SecretKey:
        return SecretKey()

    def share(self, indices: np.ndarray) -> np.ndarray:
        return indices

    def from_first(self, what: str, compute: Callable[[], Any]) -> Any:
        """What the function returns, as it would arrive at other ranks: as JSON."""
        return json.loads(json.dumps(compute()))

    def unanimous(self, phase: str) -> AbstractContextManager[dict[str, float]]:
        return nullcontext({})

    def largest(self, phase: str, numbers: Mapping[str, float]) -> dict[str, float]:
        return dict(numbers)

    def of_all(self, phase: str, numbers: Mapping[str, float]) -> list[Mapping[str, float]]:
        return [numbers]

    def check_equal(self, phase: str, facts: Callable[[], Mapping[str, object]]) -> None:
        """Nothing to compare with."""

    def add_up(self, sums: Sequence[Tensor]) -> None:
        """The sums are complete."""

    def gather_into(self, whole: Tensor, part: Tensor) -> None:
        """The part is the whole."""

    def in_time(self, phase: str, parameters: Iterable[Any], exchange: Callable[[], Any]) -> Any:
        return exchange()

    def is_known_to_all(self, error: BaseException) -> bool:
        return True

    def all_close(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


AnyRanks: TypeAlias = Alone | Ranks


def ranks_of(given: AnyRanks | None, owned: ExitStack | None = None) -> AnyRanks:
    """The ranks that were given, or all processes of the default group, which are ``owned``, or this process alone."""
    if given is not None:
        return given
    if _are_in_a_group():
        ranks = Ranks()
        return ranks if owned is None else owned.enter_context(closing(ranks))
    if were_started_together():
        raise PrivacyError(
            "several processes were started together, and each would spend the privacy budget of a run of its own: "
            "call torch.distributed.init_process_group() for all of them before privatize, or pass "
            "ranks=noisette.Alone() for runs that are separate on purpose"
        )
    return Alone()


# Variables in which launchers tell how many processes they have started together: torchrun's, where RANK is set too.
_SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@contextmanager
def in_step(ranks: AnyRanks, phase: str) -> Iterator[None]:
    """A context that ends on all ranks or on none, as ``unanimous``; memory that runs out on one, runs out on all."""
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
    sizes = [os.environ.get(name, "") for name in (_SIZES if "RANK" in os.environ else _SIZES[1:])]
    return any(size.isdecimal() and int(size) > 1 for size in sizes)


def _are_in_a_group() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def refuse_several_processes(what: str) -> None:
    """Check that this process is alone: each of several would do the same."""
    if were_started_together() or _are_in_a_group():
        raise PrivacyError(f"{what} is not made for several processes, each of which would make one: start one process")


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
        with closing(Ranks()) as ranks:
            yield ranks
    finally:
        dist.destroy_process_group()
