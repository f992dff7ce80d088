"""Tensors set side by side: each entry's gradient is its own part of the output's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from noisette.gradients.rules.elementwise import reduced
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients
from noisette.gradients.rules.registry import rewrite, rule


@rule(torch.cat, torch.concat, torch.concatenate, operand="tensors")
def cat_tensors(examples: Examples, dy: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> list[ExampleGradients]:
    """G = dy where the entry lies."""
    dim %= dy.dim()
    _require_apart(examples, dim)
    sizes = [entry.shape[dim] if entry.dim() == dy.dim() else 0 for entry in tensors]  # an entry of shape (0,) has none
    parts = dy.split(sizes, dim)
    return [reduced(examples, part, entry) for part, entry in zip(parts, tensors, strict=True)]


@rule(torch.stack, operand="tensors")
def stack_tensors(examples: Examples, dy: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> list[ExampleGradients]:
    """G = dy where the entry lies."""
    dim %= dy.dim()
    _require_apart(examples, dim)
    inside = replace(examples, axis=examples.axis - 1) if dim < examples.axis else examples
    return [reduced(inside, part, entry) for part, entry in zip(dy.unbind(dim), tensors, strict=True)]


def _require_apart(examples: Examples, dim: int) -> None:
    if dim == examples.axis and examples.count > 1:
        raise ValueError(f"it joins weights and data along axis {dim}, which holds the examples")


@rewrite(torch.hstack, torch.column_stack)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side along the second axis."""
    if any(entry.dim() < 2 for entry in tensors):
        return NotImplemented
    return torch.cat(tensors, 1)  # type: ignore[arg-type]


@rewrite(torch.vstack, torch.row_stack)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side along the first axis."""
    return torch.cat([torch.atleast_2d(entry) for entry in tensors], 0)


@rewrite(torch.dstack)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side along the third axis."""
    return torch.cat([torch.atleast_3d(entry) for entry in tensors], 2)
