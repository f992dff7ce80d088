"""Tensors that a loss reaches otherwise than as an argument: constant tables, or values of the batch by mistake."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

from torch import Tensor

from noisette.errors import PrivacyError

_WAY_OUT = (
    "If it is computed from records, pass it as an argument with one row per example; if it is not, declare it: "
    "accumulate(..., public=[tensor])"
)


class OutsideTensors:
    """The tensors from outside that losses have used: each was there before the first batch, and stays as it is.

    Class weights that a loop computes from each batch would couple its examples. They are a new tensor in each step,
    which a table of constants is not.
    """

    def __init__(self) -> None:
        self._existing: dict[int, weakref.ref[Tensor]] | None = None  # before the first batch; None without a run
        self._known: dict[int, tuple[Tensor, int]] = {}  # used in a call so far, and their versions
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # inside of calls, from constants alone
        self._current: set[int] = set()  # made or used in this call
        self._public: dict[int, Tensor] = {}
        self._calls = 0

    def before_first_batch(self) -> None:
        """No record has been read yet, so no tensor that exists now was computed from a batch."""
        found = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
        self._existing = {id(tensor): weakref.ref(tensor) for tensor in found}

    def begin(self, public: Iterable[Tensor]) -> None:
        """A call of the loss begins, for which these tensors are declared public."""
        self._calls += 1
        self._current.clear()
        self._public = {id(tensor): tensor for tensor in public}

    def made(self, tensor: Tensor) -> None:
        """A tensor was made inside of a call, from constants alone; a module may keep it for the next call."""
        key = id(tensor)
        if key not in self._known and key not in self._public:  # otherwise it is the result of an operation in place
            self._made[key] = weakref.ref(tensor, lambda _: self._made.pop(key, None)), _version(tensor)
            self._current.add(key)

    def end(self) -> None:
        """The call of the loss ends: from here on, what it has made may not be written to outside of a call."""
        for key in self._current & self._made.keys():
            if (tensor := self._made[key][0]()) is not None:
                self._made[key] = self._made[key][0], _version(tensor)

    def used(self) -> list[Tensor]:
        """The tensors from outside that the last call has used, without those that are declared public."""
        return [self._known[key][0] for key in self._current if key in self._known]

    def check(self, tensor: Tensor) -> None:
        """Check a tensor that the loss has reached and that is neither of the model nor made inside of the call.

        Raises:
            PrivacyError: it was made after the first batch was drawn, or was written to since.
        """
        key = id(tensor)
        if key in self._current or key in self._public or tensor.is_meta:
            return
        made, version = self._made.get(key, (lambda: None, 0))
        if made() is not tensor:
            if key not in self._known and not self._may_be_new(tensor):
                raise PrivacyError(f"{_described(tensor)}, and it was made after the first batch was drawn. {_WAY_OUT}")
            version = self._known.setdefault(key, (tensor, _version(tensor)))[1]
        if version != _version(tensor):
            raise PrivacyError(f"{_described(tensor)}, and it was written to since the first call. {_WAY_OUT}")
        self._current.add(key)

    def _may_be_new(self, tensor: Tensor) -> bool:
        """Whether a tensor that no call has used yet may be used: in a run an older one, else one of the first call."""
        if self._existing is None:
            return self._calls == 1
        existing = self._existing.get(id(tensor))
        return existing is not None and existing() is tensor


def _version(tensor: Tensor) -> int:
    """The number of writes; views have that of their base, and tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _described(tensor: Tensor) -> str:
    return f"the loss uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor part of the model"
