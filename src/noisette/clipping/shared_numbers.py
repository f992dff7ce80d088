"""Random numbers that the records of a microbatch would share: those of Python and NumPy, in one call of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from noisette._internal.random_state import of_python_and_numpy
from noisette.capture.python_state import PythonState
from noisette.gradients.vectorized import Loss
from noisette.gradients.vectorized_errors import NotVectorizedError

_SHARES_NUMBERS = (
    "The loss draws from a random generator of Python or NumPy: in one call for a whole microbatch, its records would "
    "share the numbers, and which ones share them would depend on other records; draw them by torch."
)


class SharedNumbers:
    """Watches the global generators of Python and NumPy, and those that the model and the loss hold.

    Numbers of torch are drawn for each example in a vectorised call, those of Python and NumPy once for all of them.
    What is held is looked for in the first call of each loss, before and after it: what it makes there, it keeps to
    draw from. Not seen are generators that a call makes for itself or that are made after the first one.

    Args:
        model: given to losses.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: dict[object, list[object]] = {}  # generators, by the code of a loss

    @contextmanager
    def refused(self, loss: Loss, *, watched: bool) -> Iterator[None]:
        """Within it the loss is called for a whole microbatch.

        Args:
            loss: the loss of one example.
            watched: whether no other code draws numbers meanwhile, as where records are loaded.

        Raises:
            NotVectorizedError: it was watched, and numbers were drawn.
        """
        if not watched:
            yield
            return
        code = _code_of(loss)
        is_first = code not in self._held
        held = self._held.setdefault(code, self._held_by(loss)) if is_first else self._held[code]
        before = of_python_and_numpy(held)
        yield
        if of_python_and_numpy(held) != before or (is_first and not _are_among(self._held_by(loss), held)):
            raise NotVectorizedError(_SHARES_NUMBERS)

    def _held_by(self, loss: Loss) -> list[object]:
        """The generators that the model and the loss hold."""
        state = PythonState(self._model)  # not kept: it holds all that it has met
        state.of(loss)
        return state.generators


def _code_of(loss: Any) -> object:
    """What is the same for a loss that is made anew in each step."""
    function = getattr(loss, "__func__", loss)
    return getattr(function, "__code__", type(function))


def _are_among(found: list[object], known: list[object]) -> bool:
    return {id(generator) for generator in found} <= {id(generator) for generator in known}
