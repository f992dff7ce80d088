"""What ``compute_loss`` of a ``PrivateTrainer`` finds around it while it computes the loss of one record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from noisette.errors import PrivacyError

_NUMBERS = (bool, int, float, str, type(None))


class _State:
    """The trainer's state while losses are computed: it takes down what is read of it."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._state, name)

    def numbers_read(self) -> list[Any]:
        return [getattr(self._state, name) for name in sorted(self._read)]


class Surroundings:
    """Tells when losses are computed, which is when nothing is logged, and what they may read of their trainer.

    A captured step is kept while the values that it is given are the same. So numbers of the trainer, of its arguments,
    and those of its state that were read, are given to the loss as well.

    Args:
        trainer: whose losses are computed.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._state_of_loss = _State(trainer.state)
        self.is_loss_computed = False

    @contextmanager
    def loss(self) -> Iterator[Any]:
        """Within it losses are computed by the function that it gives."""
        trainer, state = self._trainer, self._trainer.state
        values = [*vars(trainer).values(), *vars(trainer.args).values(), *self._state_of_loss.numbers_read()]
        numbers = tuple([value for value in values if isinstance(value, _NUMBERS)])
        trainer.state, self.is_loss_computed = self._state_of_loss, True
        try:
            yield partial(_loss_of_one, trainer.compute_loss, numbers)
        finally:
            trainer.state, self.is_loss_computed = state, False


def _loss_of_one(compute_loss: Any, numbers: object, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of one record.

    Raises:
        PrivacyError: there is none: whether a record takes part would depend on the record.
    """
    loss = compute_loss(model, dict(inputs))
    loss = loss[0] if isinstance(loss, tuple) else loss
    if loss is None:
        raise PrivacyError(
            "compute_loss returned no loss for a record; return a loss for each, such as 0 * the sum of the outputs"
        )
    return loss
