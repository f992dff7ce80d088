"""A cell of an experiment: a model at a batch and image size, and the settings of the measurement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from benchmarks.steps.models import MODELS

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

    @property
    def title(self) -> str:
        """The name of the model in figures and tables."""
        return MODELS[self.name].title

    def model(self, device: str) -> nn.Module:
        """A fresh model, whose weights are drawn on the device."""
        with torch.device(device):
            return MODELS[self.name].build().to(device)

    def data(self, device: str) -> tuple[Tensor, Tensor]:
        """A random batch."""
        return MODELS[self.name].data(self.batch, self.image, device)


def failure(error: BaseException) -> dict[str, str]:
    """An error as a result: its type and message in one line."""
    return {"error": shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …")}
