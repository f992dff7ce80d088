"""A tensor in the shape or type of another one, whose values play no part."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.gradients.rules.registry import rewrite


@rewrite(torch.Tensor.expand_as)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Expanded to a shape."""
    return input.expand(other.shape)


@rewrite(torch.Tensor.view_as)
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """Viewed in a shape."""
    return input.view(other.shape)


@rewrite(torch.Tensor.reshape_as)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """Brought to a shape."""
    return input.reshape(other.shape)


@rewrite(torch.Tensor.type_as)
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """Converted to a type, on its device."""
    return input.to(other.device, other.dtype)


@rewrite(torch.Tensor.to)
def to(input: Tensor, other: Tensor, non_blocking: bool = False, copy: bool = False) -> Tensor:
    """Converted to a type, on its device."""
    return input.to(other.device, other.dtype, non_blocking, copy)
