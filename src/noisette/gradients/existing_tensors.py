"""All tensors of the process, as Python's garbage collector knows them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy


class _Mark:
    """An object to look for: once it is not visible, objects were hidden since it was made."""


class _Hidden:
    """The tensors among the objects that ``gc.freeze`` has hidden, which are listed once for each time it is called."""

    def __init__(self) -> None:
        self._tensors: Sequence[weakref.ref[Tensor]] = ()
        self._mark: _Mark | None = None

    def tensors(self, visible: Sequence[object]) -> list[Tensor]:
        """Those that are still there.

        Args:
            visible: the objects that the collector lists, at least all tensors and marks.
        """
        if self._mark is None and not gc.get_freeze_count():
            self._mark = _Mark()
        elif not any(found is self._mark for found in visible):
            self._list()
        return [tensor for reference in self._tensors if (tensor := reference()) is not None]

    def _list(self) -> None:
        """List them, which takes a second; at the end all objects are hidden, but for a new mark."""
        gc.collect()  # what is garbage by now would else stay for ever
        gc.unfreeze()
        try:
            self._tensors = [weakref.ref(tensor) for tensor in _visible(Tensor)]
        finally:
            gc.freeze()
            self._mark = _Mark()


_hidden = _Hidden()


def existing_tensors() -> list[Tensor]:
    """All tensors of the process, but for parameters that have no shape yet."""
    visible = _visible(Tensor, _Mark)
    tensors = [found for found in visible if not isinstance(found, _Mark)]
    every = {id(tensor): tensor for tensor in [*tensors, *_hidden.tensors(visible)]}
    return [tensor for tensor in every.values() if not is_lazy(tensor)]


def _visible(*kinds: type) -> list[Any]:
    """The objects of these types and their subclasses that the collector lists.

    It lists a million objects or more, so they are sorted out without a line of Python for each.
    """
    wanted = {kind for root in kinds for kind in _with_subclasses(root)}
    objects = gc.get_objects()
    return list(compress(objects, map(wanted.__contains__, map(type, objects))))


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    for further in type.__subclasses__(kind):
        yield from _with_subclasses(further)
