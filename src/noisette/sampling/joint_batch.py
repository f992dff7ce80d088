"""The batch of a rank that takes every microbatch together with the other ranks, because they share one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from noisette.core.batches import Batch, Records
from noisette.errors import PrivacyError
from noisette.ranks import Alone, AnyRanks


@dataclass(repr=False)
class JointBatch(Batch):
    """A rank's part of a batch. Where it has fewer microbatches than another rank, blank ones follow.

    How many microbatches a rank has is private, but the calls of a sharded model need all ranks. A blank microbatch has
    the shape of a record and holds zeros, and nothing of it is added to any sum.
    """

    ranks: AnyRanks = field(default_factory=Alone)

    def microbatches(self, size: int | Literal["auto"]) -> Iterator[Any]:
        """As of a :class:`Batch`, and as many on all ranks."""
        own = super().microbatches(size)
        while True:
            microbatch = next(own, None)
            if not self.ranks.largest("a microbatch", {"left": microbatch is not None})["left"]:
                return
            if microbatch is not None:
                yield microbatch
                continue
            self.is_blank, self.current = True, 1
            yield blank(self.records)
            if self.current is not None:
                raise PrivacyError(
                    "a microbatch was not given to run.accumulate(): the ranks of a sharded model take each one "
                    "together, also where a rank has no examples left and gets a blank one"
                )
            self.is_blank = False


def blank(records: Records) -> Any:
    """A microbatch of one record with zeros in place of its values.

    Raises:
        PrivacyError: this rank has no record whose shape it could take.
    """
    if not (records.size if records.own is None else len(records.own)):
        raise PrivacyError("a rank of a sharded model has no record at all; divide the records so that each has some")
    return tree_map(_zeros, records.gather(np.arange(1)))


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else value
