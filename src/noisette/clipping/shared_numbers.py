"""Random numbers that the records of a microbatch would share: those of Python and NumPy, in one call of the loss."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from noisette._internal.random_state import EMPTY_CELL, OF_PYTHON_AND_NUMPY, of_python_and_numpy
from noisette.capture.python_state import PythonState
from noisette.core.trace import Loss, NotVectorizedError

_SHARES_NUMBERS = (
    "The loss draws from a random generator of Python or NumPy: in one call for a whole microbatch, its records would "
    "share the numbers, and which ones share them would depend on other records; draw them by torch."
)

_MOST_LOSSES = 8  # of other code, remembered
_HOLD_NOTHING = (Tensor, int, float, str, bytes)


class SharedNumbers:
    """Watches the global generators of Python and NumPy, and those that the model and the loss hold.

    Numbers of torch are drawn for each example in a vectorised call, those of Python and NumPy once for all of them.
    What is held is looked for in the first call of each loss, before and after it: what it makes there, it keeps to
    draw from. A loss made anew in each step, from the same code and the same objects, is the same one. Not seen are
    generators that a call makes for itself or that are made after the first one.

    Args:
        model: given to losses.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._state = PythonState(model)
        self._known: dict[object, _Known] = {}  # by the code of a loss

    @contextmanager
    def refused(self, loss: Loss) -> Iterator[None]:
        """Within it the loss is called for a whole microbatch.

        Args:
            loss: the loss of one example.

        Raises:
            NotVectorizedError: numbers were drawn.
        """
        code, *objects = _parts_of(loss)
        known = self._known.get(code)
        is_first = known is None
        if known is None or not known.is_of(objects):
            if len(self._known) == _MOST_LOSSES:
                self._known.clear()  # it holds what they are made of
            known = self._known[code] = _Known(objects, _held_by(loss, self._state))
        before = of_python_and_numpy(known.generators)
        yield
        drawn = of_python_and_numpy(known.generators) != before
        # Another state than the one that is kept: what it has met, it holds, and the call may have left activations.
        if drawn or (is_first and not _are_among(_held_by(loss, PythonState(self._model)), known.generators)):
            raise NotVectorizedError(_SHARES_NUMBERS)


def _held_by(loss: Loss, state: PythonState) -> list[object]:
    """The generators of Python and NumPy that the model and the loss hold."""
    state.of(loss)
    return [generator for generator in state.generators if isinstance(generator, OF_PYTHON_AND_NUMPY)]


@dataclass(frozen=True)
class _Known:
    """A loss whose generators were looked for, and what it is made of beside its code."""

    objects: list[Any]
    generators: list[object]

    def is_of(self, objects: list[Any]) -> bool:
        return len(objects) == len(self.objects) and all(map(operator.is_, objects, self.objects))


def _parts_of(loss: Any) -> Iterator[Any]:
    """The code of a loss, or the mark of its class, and the objects that it is made of.

    Tensors and numbers hold no generators, and are new in each step: in their place are their types.
    """
    if isinstance(loss, partial):
        yield from _parts_of(loss.func)
        held = [*loss.args, *loss.keywords.values()]
    elif isinstance(loss, MethodType):
        yield from _parts_of(loss.__func__)
        held = [loss.__self__]
    elif isinstance(loss, FunctionType):
        yield loss.__code__
        # As held_by_function has it, without calls in each step.
        cells = [cell.cell_contents for cell in loss.__closure__ or () if cell != EMPTY_CELL]
        held = [*cells, *(loss.__defaults__ or ()), *(loss.__kwdefaults__ or {}).values()]
    else:
        yield id(type(loss))  # which stays its own while the loss is held
        held = [loss]
    yield from (type(value) if isinstance(value, _HOLD_NOTHING) else value for value in held)


def _are_among(found: list[object], known: list[object]) -> bool:
    return {id(generator) for generator in found} <= {id(generator) for generator in known}
