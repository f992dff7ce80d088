"""What ``compute_loss`` of a ``PrivateTrainer`` finds around it while it computes the loss of one record.

The values that it computes are private: nothing of them may reach a log, or the loss of another record. Where Python
code keeps values from call to call, a run looks for what has changed, through the functions that it is given. So the
user's own ``compute_loss`` is among the arguments of the loss, with all that it can reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from noisette.errors import PrivacyError

_NUMBERS = (bool, int, float, str, type(None))


class StateOfLoss:
    """Stands in for the trainer's state: its numbers alone can be read, and nothing is set.

    A captured step is used only while what Python code has read is the same, and the state changes in every step. So
    the numbers are taken down where they are read, and no other change counts.

    Args:
        state: the state of the trainer.
    """

    _state: Any
    _read: set[str]

    def __init__(self, state: Any) -> None:
        vars(self).update(_state=state, _read=set())

    def __setattr__(self, name: str, value: object) -> None:
        raise PrivacyError(
            f"compute_loss sets state.{name}, where one record could leave something for the next or for a checkpoint: "
            "set it in a callback, and compute everything in each call anew"
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name)
        if not isinstance(value, _NUMBERS):
            raise PrivacyError(
                f"compute_loss reads state.{name}, where one record could leave something for the next or for a "
                "checkpoint: keep what the loss needs in an attribute of the trainer, and set that in a callback"
            )
        self._read.add(name)
        return value

    def numbers_read(self) -> tuple[tuple[str, Any], ...]:
        """Names and present values of the numbers that were read so far."""
        return tuple((name, getattr(self._state, name)) for name in sorted(self._read))


class Surroundings:
    """The stand-ins of a training. They are the same objects in each step, as a captured step expects.

    Args:
        trainer: whose losses are computed.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._state_of_loss = StateOfLoss(trainer.state)
        self.is_loss_computed = False

    @contextmanager
    def loss(self) -> Iterator[Any]:
        """Within it losses are computed by the function that it gives: nothing is logged, and the state is fixed."""
        trainer, state = self._trainer, self._trainer.state
        trainer.state, self.is_loss_computed = self._state_of_loss, True
        reached = trainer.compute_loss_func, vars(trainer.args), self._state_of_loss.numbers_read()
        try:
            yield partial(_loss_of_one, trainer.compute_loss, reached)
        finally:
            trainer.state, self.is_loss_computed = state, False


def _loss_of_one(compute_loss: Any, reached: object, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of one record.

    Args:
        compute_loss: of the trainer, which may be overridden.
        reached: what else it may read, for the run to follow.
        model: of the trainer.
        inputs: the record.

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
