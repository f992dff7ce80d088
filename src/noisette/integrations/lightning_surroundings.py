"""What a ``training_step`` of Lightning finds around it while it computes the loss of one record.

The values that it computes are private: nothing of them may reach a logger, a metric or the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from noisette.errors import PrivacyError

_LOGGERS = {"logger", "loggers"}
_NUMBERS = (bool, int, float, str)
_MODULE = "lightning_module"
_FOLLOWED = {"datamodule", "optimizers", "lr_scheduler_configs"}


class TrainerOfLoss:
    """Stands in for the trainer: its numbers, data module, optimizers and schedulers are the trainer's own.

    A captured step is used only while what Python code has read is the same, and a trainer changes in every step. So
    its numbers are taken down where they are read, the objects that were read are followed, and no other change counts.
    Everything else is refused to a loss: callbacks, loops and the strategy may be saved in checkpoints, and one record
    could leave something there for the next. Lightning itself uses them until the release.

    Args:
        trainer: that of the module.
        is_loss_computed: tells whether it is a loss that asks.
    """

    _trainer: Any
    _is_loss_computed: Callable[[], bool]
    _read: set[str]
    _followed: set[str]

    def __init__(self, trainer: Any, is_loss_computed: Callable[[], bool]) -> None:
        vars(self).update(_trainer=trainer, _is_loss_computed=is_loss_computed, _read=set(), _followed=set())

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
        elif name in _FOLLOWED or _is_plain(value):
            self._followed.add(name)
        elif name != _MODULE and self._is_loss_computed():
            raise PrivacyError(
                f"training_step uses {name} of its trainer, where one record could leave something for the next, or "
                "for a checkpoint: a step may use the trainer's numbers, datamodule and optimizers. Do the rest in a "
                "hook, such as on_train_batch_end, and keep what a call computes in an attribute of the module, which "
                "is put back after it"
            )
        return value

    def held(self) -> list[Any]:
        """The objects that were read so far; of optimizers and schedulers, their settings."""
        found: list[Any] = []
        for name in sorted(self._followed):
            value = getattr(self._trainer, name)
            if name == "optimizers":
                found += [value for each in value for group in each.param_groups for value in _settings(group)]
            elif name == "lr_scheduler_configs":
                found += [table for each in value for table in (vars(each), vars(each.scheduler))]
            else:
                found.append(value)
        return found

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
        self.trainer_of_loss = TrainerOfLoss(self._trainer, lambda: self.is_loss_computed)
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


def _is_plain(value: object) -> bool:
    """Whether this is nothing, a device, a path, or a list of these, numbers and texts."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (*_NUMBERS, torch.device, PurePath))


def _settings(group: dict[str, Any]) -> list[Any]:
    """Names and values of a group of parameters."""
    return [part for name, value in group.items() if name != "params" for part in (name, value)]


def _is_metric(part: object) -> bool:
    return any(
        base.__name__ in ("Metric", "MetricCollection") and base.__module__.startswith("torchmetrics.")
        for base in type(part).__mro__
    )
