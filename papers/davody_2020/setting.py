"""How a network is trained under noise on its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class NoisyWeights:
    """A network and how it is trained under weight noise.

    Adam goes through ``epochs`` of batches, its learning rates falling along half a cosine to zero, or constant.
    ``lr_norms`` is the rate of the norms' own scales and shifts, which carry no noise. A network that is no better than
    chance after ``patience`` epochs is given up.
    """

    kind: ClassVar[str] = "weight noise"

    data: str
    model: str
    sigma: float
    epochs: int
    batch_size: int
    lr: float
    lr_norms: float
    cosine: bool = True
    patience: int | None = 4
