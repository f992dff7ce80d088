"""Axes of a batch and of one example, whose shape lacks the batch axis."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def refuse_batch_axis(dims: Iterable[int]) -> None:
    """Refuse an operation along axis 0, which would mix examples.

    Raises:
        ValueError: one of the axes is 0.
    """
    if 0 in dims:
        raise ValueError(
            "axis 0 holds the examples of a batch, which must not mix; give an axis of one example, from 1"
        )


def example_axis(dim: int, shape: tuple[int, ...]) -> int:
    """The index of a batch's axis ``dim`` in the shape of one example.

    Raises:
        ValueError: there is no such axis.
    """
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if not 0 <= axis < len(shape):
        raise ValueError(f"an example of shape {shape} has no axis {dim}")
    return axis


def per_example_norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example over all its elements, in double precision, shape (b,)."""
    return torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x.unsqueeze(1), dim=1, dtype=torch.float64)
