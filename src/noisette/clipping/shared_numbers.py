"""Random numbers that the records of a microbatch would share: those of Python and NumPy, in one call of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import ReferenceType, ref

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

    Args:
        model: given to losses.
    """

    def __init__(self, model: nn.Module) -> None:
        self._state = PythonState(model)
        self._loss: ReferenceType[Loss] | None = None  # the last one that was looked at
        self._held: list[object] = []

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
        held = self._held_by(loss)
        before = of_python_and_numpy(held)
        yield
        if of_python_and_numpy(held) != before:
            raise NotVectorizedError(_SHARES_NUMBERS)

    def _held_by(self, loss: Loss) -> list[object]:
        """The generators that the model and the loss hold; they are looked for anew with another loss."""
        if self._loss is None or self._loss() is not loss:
            self._state.of(loss)
            self._held = self._state.generators
            try:
                self._loss = ref(loss)
            except TypeError:  # an object without room for it
                self._loss = None
        return self._held
