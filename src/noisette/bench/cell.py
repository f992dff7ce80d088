"""One place in an experiment: a model, its batch and its image size, and under which settings it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten

from torch import Tensor, nn

from noisette.bench.models import MODELS

_LONGEST = 300  # characters of a message


@dataclass(frozen=True)
class Settings:
    """What holds for a whole command."""

    rounds: int
    threads: int
    device: str


@dataclass(frozen=True)
class Cell:
    """A model at a batch size; ``image`` is the pixels a side where the model takes images of any size."""

    name: str
    batch: int
    image: int | None = None
    target: float | None = None  # ratio to plain training that noisette aims at

    @property
    def title(self) -> str:
        """The model as a reader calls it."""
        return MODELS[self.name].title

    def model(self, device: str) -> nn.Module:
        """A fresh model."""
        return MODELS[self.name].build().to(device)

    def data(self, device: str) -> tuple[Tensor, Tensor]:
        """A batch at random."""
        return MODELS[self.name].data(self.batch, self.image, device)


def failure(error: BaseException) -> dict[str, str]:
    """An error as a result: its kind and what it says, in one line."""
    return {"error": shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …")}
