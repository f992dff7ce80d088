"""Metrics of torchmetrics in a ``training_step``: they do nothing while losses of private records are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from noisette.errors import PrivacyError


class NotComputed:
    """What a metric returns for private records: it may be logged, which does nothing, and enter no computation."""

    def __getattr__(self, name: str) -> Any:
        raise PrivacyError(
            "training_step computes with the value of a metric of torchmetrics, which is not computed of private "
            "records: call the metric in validation_step, or use a function of torch in the loss"
        )

    def __torch_function__(self, *_: object) -> Any:
        return self.value


class _Muted(nn.Module):
    """In the place of each metric; always the same object, as a captured step expects."""

    def forward(self, *_: object, **__: object) -> NotComputed:
        return NotComputed()

    compute = update = reset = forward


_MUTED = _Muted()


@contextmanager
def muted_metrics(module: nn.Module) -> Iterator[None]:
    """Within it, metrics that the module holds do nothing."""
    held = [
        (part._modules, name, metric)
        for part in module.modules()
        if not _is_metric(part)
        for name, metric in part._modules.items()
        if _is_metric(metric)
    ]
    for modules, name, _ in held:
        modules[name] = _MUTED
    try:
        yield
    finally:
        for modules, name, metric in held:
            modules[name] = metric


def _is_metric(part: object) -> bool:
    return any(
        base.__name__ in ("Metric", "MetricCollection") and base.__module__.startswith("torchmetrics.")
        for base in type(part).__mro__
    )
