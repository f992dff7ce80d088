"""A cell of an experiment: a model at a batch and image size, and the settings of the measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

import torch
from torch import nn

from benchmarks.steps.models import MODELS
from benchmarks.steps.sgd import Data

_LONGEST = 300  # characters of a message


@dataclass(frozen=True)
class Settings:
    """Settings of a whole command.

    Args:
        rounds: turns of each method.
        threads: of the processor.
        device: ``"cpu"`` or ``"cuda"``.
        seconds: after which the rounds of a cell end, once there are three; ``None``: never.
        fastdp: folder of a checkout of fastDP.
        dtype: ``"float32"``, or ``"bfloat16"`` for autocast to it.
    """

    rounds: int
    threads: int
    device: str
    seconds: float | None = None
    fastdp: Path | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Cell:
    """A model at a batch size; ``image`` is the width in pixels if the model accepts images of any size."""

    name: str
    batch: int
    image: int | None = None
    target: float | None = None  # ratio to plain training that is aimed at
    target_compiled: float | None = None  # likewise, to compiled plain training
    records: int | None = None  # of a data set that batches are drawn from; None: every step has one batch, at hand

    @property
    def title(self) -> str:
        """The name of the model in figures and tables."""
        return MODELS[self.name].title

    def with_batch(self, batch: int) -> Cell:
        """The same at another batch size and the same sampling rate."""
        return replace(self, batch=batch, records=self.records and self.records // self.batch * batch)

    def model(self, device: str) -> nn.Module:
        """A fresh model, whose weights are drawn on the device."""
        with torch.device(device):
            return MODELS[self.name].build().to(device)

    def data(self, device: str) -> Data:
        """Random records."""
        drawn = MODELS[self.name].data(self.records or self.batch, self.image, device)
        return Data(*drawn, None if self.records is None else self.batch)


def failure(error: BaseException) -> dict[str, str]:
    """An error as a result: its type and message in one line."""
    return {"error": shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …")}
