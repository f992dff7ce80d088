"""What a ``training_step`` of Lightning finds around it while it computes the loss of one record.

The values that it computes are private: nothing of them may reach a logger, a metric or the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from noisette.errors import PrivacyError

_LOGGERS = {"logger", "loggers"}
_NUMBERS = (bool, int, float, str)


class TrainerOfLoss:
    """Stands in for the trainer: everything but its loggers is the trainer's own.

    A captured step is used only while what Python code has read is the same, and a trainer changes in every step. So
    its numbers are taken down where they are read, and no other change counts.
    """

    _trainer: Any
    _read: set[str]

    def __init__(self, trainer: Any) -> None:
        vars(self).update(_trainer=trainer, _read=set())

    def __setattr__(self, name: str, value: object) -> None:
        raise PrivacyError(
            f"training_step sets {name} of its trainer, where one record could leave something for the next: keep "
            "what a call computes in an attribute of the module, which is put back after it"
        )

    def __getattr__(self, name: str) -> Any:
        if name in _LOGGERS:
            raise no_logger()
        value = getattr(self._trainer, name)
        if isinstance(value, _NUMBERS):
            self._read.add(name)
        return value

    def numbers_read(self) -> tuple[tuple[str, Any], ...]:
        """Names and present values of the numbers that were read so far."""
        return tuple((name, getattr(self._trainer, name)) for name in sorted(self._read))


class NotComputed:
    """What a metric returns for private records: it may be logged, which does nothing, and enter no computation."""

    def __getattr__(self, name: str) -> Any:
        raise _no_metric()

    def __torch_function__(self, *_: object) -> Any:
        raise _no_metric()


class MutedMetric(nn.Module):
    """Stands in for a metric of torchmetrics, which would add up values of private records."""

    def forward(self, *_: object, **__: object) -> NotComputed:
        return NotComputed()

    def compute(self) -> NotComputed:
        return NotComputed()

    def update(self, *_: object, **__: object) -> None:
        pass

    def reset(self) -> None:
        pass


class Surroundings:
    """The stand-ins of a fit. They are the same objects in each step, as a captured step expects.

    Args:
        module: of Lightning, attached to its trainer.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._trainer = module.trainer
        self.trainer_of_loss = TrainerOfLoss(self._trainer)
        self.is_loss_computed = False
        self._muted = [
            (part, name, metric, MutedMetric())
            for part in module.modules()
            if not _is_metric(part)
            for name, metric in part._modules.items()
            if _is_metric(metric)
        ]

    def enter(self) -> None:
        """Put the stand-ins in place; before a batch is read, because a run puts the model back to this."""
        self._module.trainer = self.trainer_of_loss
        for part, name, _, muted in self._muted:
            part._modules[name] = muted

    def leave(self) -> None:
        """Remove the stand-ins."""
        self._module.trainer = self._trainer
        for part, name, metric, _ in self._muted:
            part._modules[name] = metric

    @contextmanager
    def loss(self) -> Iterator[None]:
        """While losses are computed, nothing is logged."""
        self.is_loss_computed = True
        try:
            yield
        finally:
            self.is_loss_computed = False


def no_logger() -> PrivacyError:
    """What is said where a loss asks for the logger."""
    return PrivacyError(
        "training_step uses a logger, and what it computes of a record is private: log in validation_step, whose "
        "records are not covered by the guarantee; self.log() in training_step is left out by itself"
    )


def _no_metric() -> PrivacyError:
    return PrivacyError(
        "training_step computes with the value of a metric of torchmetrics, which is not computed of private records: "
        "call the metric in validation_step, or use a function of torch in the loss"
    )


def _is_metric(part: object) -> bool:
    return any(
        base.__name__ in ("Metric", "MetricCollection") and base.__module__.startswith("torchmetrics.")
        for base in type(part).__mro__
    )
