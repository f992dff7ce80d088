"""How a network is trained under noise on its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class NoisyWeights:
    """A network and how it is trained under weight noise.

    Adam runs for ``epochs`` epochs, with learning rates that fall to zero along half a cosine or are constant.
    ``lr_norms`` is the rate of the norms' own scales and shifts, which have no noise. Training ends after ``patience``
    epochs if the network is no better than chance.
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
