"""Which torch calls may move examples along their axis, and what tells one such call from another.

A pass with the same calls, moved in the same way, holds its examples in the same places. A call that moves by values,
such as sorting or an index tensor, may do something else in each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

BY_VALUES = "by values"  # the mark of a call whose effect on the order is not known from its arguments

_VF = torch._VF  # pyright: ignore[reportPrivateImportUsage]
_VALUE_NAMES = [
    "sort", "argsort", "msort", "topk", "kthvalue", "unique", "unique_consecutive", "gather", "take",
    "take_along_dim", "index_select", "masked_select", "index_copy", "index_add", "index_put", "index_fill",
    "scatter", "scatter_add", "scatter_reduce", "masked_scatter", "index_copy_", "index_add_", "index_put_",
    "scatter_", "scatter_add_", "scatter_reduce_", "masked_scatter_",
]  # fmt: skip
_STATIC_NAMES = [
    "flip", "fliplr", "flipud", "roll", "rot90", "transpose", "permute", "movedim", "moveaxis", "swapaxes",
    "swapdims", "t", "T", "mT", "unbind", "narrow", "select",
]  # fmt: skip
_JOIN_NAMES = ["cat", "concat", "concatenate", "stack", "vstack", "hstack"]


def _named(names: list[str]) -> set[Callable[..., Any]]:
    found = [getattr(owner, name, None) for name in names for owner in (torch, Tensor)]
    return {call if callable(call) else call.__get__ for call in found if call is not None}


_JOINS = _named(_JOIN_NAMES)
_BY_VALUES = _named(_VALUE_NAMES) | {_VF._pack_padded_sequence, torch.embedding, torch.nn.functional.embedding}
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
MOVING = _BY_VALUES | _named(_STATIC_NAMES) | _JOINS | _INDEXING


def mark_of_move(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What the effect of this call of :data:`MOVING` on the order of the examples depends on.

    Equal marks move alike. For joining it is the order of the parts, told by the outputs of the graph that they are;
    for indexing the index, where bounds that leave out nothing count as none, so that it does not tell the batch size.
    """
    if call in _BY_VALUES:
        return BY_VALUES
    if call in _JOINS:
        parts = args[0] if args else kwargs.get("tensors", ())
        return call.__name__, tuple(part.output_nr for part in parts if isinstance(part, Tensor))
    if call in _INDEXING:
        index = args[1] if type(args[1]) is tuple else (args[1],)
        return _mark_of_index(args[0], index)
    return getattr(call, "__name__", ""), repr(
        [value for value in (*args, *kwargs.items()) if type(value) is not Tensor]
    )


def _mark_of_index(tensor: Tensor, index: tuple[Any, ...]) -> Hashable:
    """The parts of an index, one mark for each; ``BY_VALUES`` where a tensor or a list is among them."""
    if any(isinstance(part, Tensor | list | range) or hasattr(part, "__array__") for part in index):
        return BY_VALUES
    whole = len([part for part in index if part is not None and part is not Ellipsis])
    axis, marks = 0, list[Hashable]()
    for part in index:
        if isinstance(part, slice):
            size = tensor.shape[axis] if axis < tensor.dim() else 0
            start, stop, step = part.indices(size)
            marks.append((start, None if stop == size else stop, step))
        else:
            marks.append(repr(part))
        axis += tensor.dim() - whole if part is Ellipsis else part is not None
    return tuple(marks)
