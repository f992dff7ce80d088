"""Conversions to the shape or type of another tensor, whose values do not enter the result."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from noisette.core.registry import rewrite


def _with_shape_of_other(convert: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def converted(input: Tensor, other: Tensor) -> Tensor:
        return convert(input, other.shape)

    return converted


rewrite(Tensor.expand_as)(_with_shape_of_other(Tensor.expand))
rewrite(Tensor.view_as)(_with_shape_of_other(Tensor.view))
rewrite(Tensor.reshape_as)(_with_shape_of_other(Tensor.reshape))


@rewrite(Tensor.type_as, Tensor.to)
def to(input: Tensor, other: Tensor, non_blocking: bool = False, copy: bool = False) -> Tensor:
    """Conversion to the device and type of a tensor."""
    return input.to(other.device, other.dtype, non_blocking, copy)
