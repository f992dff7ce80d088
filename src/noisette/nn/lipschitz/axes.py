"""Axes of a batch, told to one example, whose shape lacks the first."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def refuse_batch_axis(dims: Iterable[int]) -> None:
    """None of the axes is the first, along which lie other examples.

    Raises:
        ValueError: one is.
    """
    if 0 in dims:
        raise ValueError(
            "axis 0 holds the examples of a batch, which must not mix; give an axis of one example, from 1"
        )


def of_example(dim: int, shape: tuple[int, ...]) -> int:
    """Where axis ``dim`` of a batch lies in the shape of one example.

    Raises:
        ValueError: there is no such axis.
    """
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if not 0 <= axis < len(shape):
        raise ValueError(f"an example of shape {shape} has no axis {dim} of its own")
    return axis


def per_example_norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example over all its numbers, in double precision, shape (b,)."""
    return torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x.unsqueeze(1), dim=1, dtype=torch.float64)
