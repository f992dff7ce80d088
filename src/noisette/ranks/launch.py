"""The processes that ``torchrun`` has started for a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from noisette.core.release import Alone
from noisette.ranks.choice import AnyRanks, were_started_together
from noisette.ranks.process_group import Ranks


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
