"""The training records of a ``Trainer``: each is collated alone, then padded to the bucket of its own length.

Which fields are padded is decided by their names and by the kind of model, which are public, never by the lengths that
are met in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.models.auto import modeling_auto

from noisette.sampling.buckets import PaddedBuckets
from noisette.sampling.collation import row_of
from noisette.sampling.loading import record

Collate = Callable[[list[Any]], Mapping[str, Any]]
_IGNORED_LABEL = -100  # which the losses of transformers leave out
_ONE_FOR_EACH_TOKEN: dict[str, float] = {
    "attention_mask": 0,
    "token_type_ids": 0,
    "position_ids": 0,
    "special_tokens_mask": 1,
    "global_attention_mask": 0,
    "mm_token_type_ids": 0,
    "bbox": 0,
}
_OF_TARGETS: dict[str, float] = {"decoder_attention_mask": 0, "labels": _IGNORED_LABEL}  # with a length of their own


def _classes(*kinds: str) -> set[str]:
    """Names of the model classes of these kinds; a version of transformers may lack a kind."""
    return {
        name
        for kind in kinds
        for entry in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES", {}).values()
        for name in ([entry] if isinstance(entry, str) else entry)
    }


_OF_TOKENS = _classes("TOKEN_CLASSIFICATION")
_OF_TEXTS = _classes(
    *("CAUSAL_LM", "MASKED_LM", "PRETRAINING", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "VISION_2_SEQ"),
    *("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"),
)
_OF_CHOICES = _classes("MULTIPLE_CHOICE")


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

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = self._collate([record(self._records, int(index))])
        one = row_of({name: _as_tensor(value) for name, value in made.items()})
        if "input_ids" in one and "attention_mask" not in one:  # so that padding is left out
            one["attention_mask"] = torch.ones_like(one["input_ids"])
        return one


def _as_tensor(value: Any) -> Any:
    """Lists of numbers as a tensor; any other value as it is."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # such as texts, which nobody may read
        return value


def bucketed(
    records: Any,
    collate: Collate,
    edges: Sequence[int],
    pad_token: int,
    model: nn.Module,
    padded_fields: Mapping[str, float],
) -> Any:
    """The training records, padded by buckets where they are texts.

    Args:
        records: of the trainer.
        collate: its collator.
        edges: lengths of the buckets.
        pad_token: fills up token ids.
        model: whose class says whether there is a label for each token.
        padded_fields: further fields with a value for each token, and what fills them up.

    Raises:
        TypeError: there is no training set, or one without ``len`` and indexing.
        ValueError: a record lacks a field that the first one has, or has fields of different lengths.
    """
    if records is None or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
        raise TypeError(f"expected a train_dataset with len and indexing, got a {type(records).__name__}")
    collated: Any = CollatedRecords(records, collate)
    names = collated[0].keys() if len(collated) else set()
    for fills in _fills(model, pad_token, padded_fields):
        pad: dict[int | str, float] = {name: fill for name, fill in fills.items() if name in names}
        if pad:
            collated = PaddedBuckets(collated, edges, pad=pad)
    return collated


def _fills(model: nn.Module, pad_token: int, more: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The fields that are as long as the text, and those that are as long as its target, with what fills them up."""
    of_text: dict[str, float] = {"input_ids": pad_token} | _ONE_FOR_EACH_TOKEN
    of_target: dict[str, float] = {}
    kinds = {kind.__name__ for kind in type(_unwrapped(model)).__mro__}
    if kinds & _OF_CHOICES:  # the first axis of a record is that of the choices
        of_text = {}
    elif kinds & _OF_TEXTS and getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        of_target = {"decoder_input_ids": pad_token} | _OF_TARGETS
    elif kinds & (_OF_TEXTS | _OF_TOKENS):
        of_text["labels"] = _IGNORED_LABEL
    return of_text | dict(more), {name: fill for name, fill in of_target.items() if name not in more}


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model of transformers within one of PEFT."""
    wrapper: Any = model
    return wrapper.get_base_model() if hasattr(model, "get_base_model") else model
