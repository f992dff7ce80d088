"""The training records of a ``Trainer``: each is collated alone, then padded to the bucket of its own length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisette.sampling.buckets import PaddedBuckets

Collate = Callable[[list[Any]], Mapping[str, Any]]
_IGNORED_LABEL = -100  # which the losses of transformers leave out


class CollatedRecords:
    """Records as tensors, each made by the collator from that record alone.

    Args:
        records: with ``len`` and indexing.
        collate: makes a batch of a list of records.
    """

    def __init__(self, records: Any, collate: Collate) -> None:
        self._records = records
        self._collate = collate

    @property
    def known_by(self) -> Any:
        """The records, by which a resumed run recognises the data set."""
        return self._records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        made = self._collate([self._records[int(index)]])
        one = {name: torch.as_tensor(value)[0] for name, value in made.items()}
        if "input_ids" in one and "attention_mask" not in one:  # so that padding is left out
            one["attention_mask"] = torch.ones_like(one["input_ids"])
        return one


def bucketed(records: Any, collate: Collate, edges: Sequence[int], pad_token: int) -> Any:
    """The training records, padded by buckets where they are texts.

    Args:
        records: of the trainer.
        collate: its collator.
        edges: lengths of the buckets.
        pad_token: fills up token ids.

    Raises:
        TypeError: there is no training set, or one without ``len`` and indexing.
    """
    if records is None or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
        raise TypeError(f"expected a train_dataset with len and indexing, got a {type(records).__name__}")
    collated = CollatedRecords(records, collate)
    if not len(collated) or "input_ids" not in (first := collated[0]):
        return collated
    positions = len(first["input_ids"])
    fills = {"input_ids": pad_token, "labels": _IGNORED_LABEL}
    pad: dict[int | str, float] = {
        name: fills.get(name, 0) for name, value in first.items() if value.dim() and len(value) == positions
    }
    return PaddedBuckets(collated, edges, pad=pad)
