"""Concatenated and stacked tensors: the gradient of an entry is its part of the gradient of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples
from noisette.core.registry import rewrite, rule
from noisette.rules.arithmetic import unbroadcast


@rule(torch.cat, torch.concat, torch.concatenate, operand="tensors")
def cat_tensors(examples: Examples, dy: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> list[ExampleGradients]:
    """G = the part of dy at the entry."""
    dim %= dy.dim()
    _require_other_axis(examples, dim)
    sizes = [entry.shape[dim] if entry.dim() == dy.dim() else 0 for entry in tensors]  # an entry of shape (0,) has none
    parts = dy.split(sizes, dim)
    return [unbroadcast(examples, part, entry) for part, entry in zip(parts, tensors, strict=True)]


@rule(torch.stack, operand="tensors")
def stack_tensors(examples: Examples, dy: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> list[ExampleGradients]:
    """G = the part of dy at the entry."""
    dim %= dy.dim()
    _require_other_axis(examples, dim)
    of_entry = replace(examples, axis=examples.axis - 1) if dim < examples.axis else examples
    return [unbroadcast(of_entry, part, entry) for part, entry in zip(dy.unbind(dim), tensors, strict=True)]


def _require_other_axis(examples: Examples, dim: int) -> None:
    """Refuse the example axis: with twice the examples, each would seem to have two positions."""
    if dim == examples.axis and examples.count > 1:
        raise ValueError(f"it concatenates weights and data along axis {dim}, which holds the examples")


@rewrite(torch.hstack, torch.column_stack)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenation along axis 1."""
    if any(entry.dim() < 2 for entry in tensors):
        return NotImplemented
    return torch.cat(tensors, 1)  # type: ignore[arg-type]


@rewrite(torch.vstack, torch.row_stack)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenation along axis 0."""
    return torch.cat([torch.atleast_2d(entry) for entry in tensors], 0)


@rewrite(torch.dstack)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenation along axis 2."""
    return torch.cat([torch.atleast_3d(entry) for entry in tensors], 2)
