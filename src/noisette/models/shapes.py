"""Shapes of examples, and the checks with which models refuse them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Shape = Sequence[int]  # of one example: (features,) or (channels, height, width)


def numbers_of(shape: Shape) -> int:
    """The number of values of one example."""
    return torch.Size(shape).numel()


def need_axes(name: str, shape: Shape, axes: int, kind: str) -> None:
    """Raise ValueError unless examples have this many axes; ``kind`` describes such examples."""
    if len(shape) != axes:
        raise ValueError(f"the model {name!r} needs {kind}, got examples of shape {tuple(shape)}")


def need_images(name: str, shape: Shape, *, pixels: int = 1) -> None:
    """Raise ValueError unless examples are images of at least this many pixels a side."""
    need_axes(name, shape, 3, "images (channels, height, width)")
    if min(shape[1:]) < pixels:
        raise ValueError(
            f"the model {name!r} needs images of {pixels} x {pixels} pixels or more, got examples of shape "
            f"{tuple(shape)}"
        )
