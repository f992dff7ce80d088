"""Which processes take part in a run, where the user does not say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist

from noisette.errors import PrivacyError
from noisette.ranks.alone import Alone
from noisette.ranks.process_group import Ranks

AnyRanks: TypeAlias = Alone | Ranks
"""The processes of a run."""


def ranks_of(given: AnyRanks | None) -> AnyRanks:
    """The ranks that were given, or all processes of the default group, or this process alone.

    Raises:
        PrivacyError: several processes were started together, and nothing says how they belong together. As separate
            runs each would spend the budget, and count it once.
    """
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized():
        return Ranks() if dist.get_world_size() > 1 else Alone()
    if were_started_together():
        raise PrivacyError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, and each would spend the privacy budget of a run "
            "of its own: call torch.distributed.init_process_group() before privatize, or pass ranks=noisette.Alone() "
            "for runs that are separate on purpose"
        )
    return Alone()


class OtherRankRanOut(torch.OutOfMemoryError):
    """Memory ran out on another rank, so nothing of this microbatch counts on any."""


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
    """Whether torchrun started this process beside others."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1
