"""Tensors that a vectorised loss reaches otherwise than as an argument: constant tables, or private data by mistake."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from noisette._internal.content_mark import content_mark
from noisette.errors import PrivacyError
from noisette.gradients.existing_tensors import existing_tensors


@dataclass(frozen=True)
class _Known:
    """A tensor and what tells whether it was written to since; holding it keeps its ``id`` from being used again."""

    tensor: Tensor
    version: int
    address: int
    checksum: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Known:
        return cls(tensor, _version(tensor), tensor.data_ptr(), _checksum(tensor))


class OutsideTensors:
    """The tensors from outside that losses have used: each was there before the first batch, and stays as it is.

    Class weights of the batch, computed before the call, would couple the examples. They are a new tensor in each
    step, which a table of constants is not.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # inside of calls, from constants alone; version
        self._current: set[int] = set()  # of these, the ones that the current call has made or used
        self._checked: set[int] = set()  # in the current call
        self._public: dict[int, Tensor] = {}
        self._calls = 0
        # Those before the first batch, and the versions of the few that had been written to. There may be many, so
        # each run keeps no object of its own for one: until collected, they would slow all further runs down.
        self._existing: dict[int, weakref.ref[Tensor]] | None = None
        self._versions: dict[int, int] = {}

    def before_first_batch(self) -> None:
        """No record has been read yet, so no tensor that exists now was computed from a batch."""
        existing = existing_tensors()
        self._existing = {id(tensor): weakref.ref(tensor) for tensor in existing}
        self._versions = {id(tensor): version for tensor in existing if (version := _version(tensor))}

    def begin(self, public: Iterable[Tensor]) -> None:
        """A call of the loss begins, for which these tensors are declared public."""
        self._calls += 1
        self._checked.clear()
        self._current.clear()
        self._public = {id(tensor): tensor for tensor in public}

    def made(self, tensor: Tensor) -> None:
        """A tensor was made inside of a call, from constants alone; a module may keep it for the next call."""
        key = id(tensor)
        if key in self._known or key in self._public:
            return  # the result of an operation in place
        self._made[key] = weakref.ref(tensor, lambda _: self._made.pop(key, None)), _version(tensor)
        self._current.add(key)

    def end(self) -> None:
        """The call of the loss ends: from here on, what it has made may not be written to outside of a call."""
        for key in self._current & self._made.keys():
            if (tensor := self._made[key][0]()) is not None:
                self._made[key] = self._made[key][0], _version(tensor)

    def used(self) -> list[Tensor]:
        """The tensors from outside that the last call has used, without those that are declared public."""
        known = [self._known[key].tensor for key in self._checked if key in self._known]
        made = [self._made[key][0]() for key in self._checked if key in self._made]
        return [*known, *(tensor for tensor in made if tensor is not None)]

    def check(self, tensor: Tensor) -> None:
        """Check a tensor that the loss has reached and that is neither of the model nor made inside of the call.

        A tensor of the device "meta" has no values; torch's nested tensors share one, made when the first of them is.

        Raises:
            PrivacyError: it was not there in the first call, or has changed since.
        """
        key = id(tensor)
        if key in self._checked or key in self._public or tensor.is_meta:
            return
        made, version = self._made.get(key, (None, 0))
        if made is not None and made() is tensor:
            if key not in self._current and version != _version(tensor):
                raise PrivacyError(f"{_described(tensor)}, and it was written to since the first call. {_WAY_OUT}")
            self._current.add(key)
        else:
            now, before = _Known.of(tensor), self._known.get(key)
            if before is None and not self._may_be_new(tensor):
                raise PrivacyError(
                    f"{_described(tensor)}, and it was made or written to after the first batch was drawn. {_WAY_OUT}"
                )
            if before is not None and (before.version, before.checksum) != (now.version, now.checksum):
                raise PrivacyError(f"{_described(tensor)}, and it was written to since the first call. {_WAY_OUT}")
            self._known[key] = now
        self._checked.add(key)

    def _may_be_new(self, tensor: Tensor) -> bool:
        """Whether a tensor that no call has used yet may be used: in a run an older one, else one of the first call."""
        if self._existing is None:
            return self._calls == 1
        existing = self._existing.get(id(tensor))
        return existing is not None and existing() is tensor and self._versions.get(id(tensor), 0) == _version(tensor)


_WAY_OUT = (
    "If it is computed from records, pass it as an argument with one row per example; if it is not, declare it: "
    "accumulate(..., public=[tensor])"
)


def _version(tensor: Tensor) -> int:
    """The number of writes; views have that of their base, and tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _described(tensor: Tensor) -> str:
    return f"the loss uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor part of the model"


def _checksum(tensor: Tensor) -> int:
    """The mark of the content; zero for a tensor without memory of its own that could be read.

    While the loss is traced, this is no part of what is traced.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or not tensor.numel():
        return 0
    with _disable_current_modes():
        return int(content_mark(tensor))
