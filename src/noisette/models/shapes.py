"""Shapes of examples: what a factory of models is given, and what it asks of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Shape = Sequence[int]  # of one example: (features,) or (channels, height, width)


def numbers_of(shape: Shape) -> int:
    """How many numbers one example has."""
    return torch.Size(shape).numel()


def need_images(name: str, shape: Shape, *, pixels: int = 1) -> None:
    """Raises ValueError unless examples are images of so many pixels a side, or more."""
    if len(shape) != 3:
        raise ValueError(
            f"the model {name!r} needs images (channels, height, width), got examples of shape {tuple(shape)}"
        )
    if min(shape[1:]) < pixels:
        raise ValueError(
            f"the model {name!r} needs images of {pixels} x {pixels} pixels or more, got examples of shape "
            f"{tuple(shape)}"
        )
