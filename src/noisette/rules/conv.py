"""Convolutions and transposed convolutions in one to three dimensions.

The gradient of a kernel is a correlation of images with the output's gradients. A transposed convolution is the same
with images and gradients exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, rewrite, rule_per_operand
from noisette.rules.kernel_factors import Geometry
from noisette.rules.kernel_gradients import KernelGradients

F = torch.nn.functional
PerAxis = int | Sequence[int]


def _per_axis(value: PerAxis, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * axes if len(values) == 1 else values


def _kernel_gradients(
    examples: Examples,
    images: Tensor,
    dy: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, ...], tuple[int, ...]],  # before and after
    dilation: tuple[int, ...],
    groups: int,
) -> KernelGradients:
    """Gradients of a kernel on images (n, c, *image), with ``dy`` (n, o, *positions) and n images in all examples."""
    before, after = padding
    if before != after:
        images = F.pad(images, [n for ends in zip(reversed(before), reversed(after), strict=True) for n in ends])
        before = (0,) * len(before)
    kernel = tuple(weight.shape[2:])
    if len(images) != examples.count:
        if len(kernel) == 3:
            raise ValueError(f"{len(images)} volumes in a batch of {examples.count} examples")
        # The images of one example become a further axis, on which the kernel has length one.
        images, dy = (examples.first(factor).transpose(1, 2) for factor in (images, dy))
        kernel, stride, before, dilation = (1, *kernel), (1, *stride), (0, *before), (1, *dilation)
    return KernelGradients(images, dy, Geometry(kernel, stride, before, dilation, groups), weight.shape)


def _bias_gradients(examples: Examples, dy: Tensor) -> Dense:
    """G_o = sum_p dy_(o,p)."""
    return Dense(examples.first(dy).flatten(3).sum((1, 3)))


@rule_per_operand(torch.conv1d, torch.conv2d, torch.conv3d, operands=("weight", "bias"))
def conv(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> ExampleGradients:
    """Weight: G_(o,c,u) = sum_p dy_(o,p) x_(c, stride p + dilation u - padding). Bias: G_o = sum_p dy_(o,p)."""
    if operand == "bias":
        return _bias_gradients(examples, dy)
    axes = weight.dim() - 2
    steps = _per_axis(dilation, axes)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(steps, weight.shape[2:], strict=True)]
        before = tuple(n // 2 for n in total)
        ends = before, tuple(n - m for n, m in zip(total, before, strict=True))
    else:
        before = _per_axis(0 if isinstance(padding, str) else padding, axes)
        ends = before, before
    return _kernel_gradients(examples, input, dy, weight, _per_axis(stride, axes), ends, steps, groups)


@rule_per_operand(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, operands=("weight", "bias"))
def conv_transpose(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> ExampleGradients:
    """As :func:`conv` with dy and x exchanged: G_(c,o,u) = sum_p x_(c,p) dy_(o, stride p + dilation u - padding)."""
    if operand == "bias":
        return _bias_gradients(examples, dy)
    axes = weight.dim() - 2
    steps, before = _per_axis(stride, axes), _per_axis(padding, axes)
    # Output padding of a whole stride would be one position more than x has.
    extra = zip(before, _per_axis(output_padding, axes), steps, strict=True)
    after = tuple(p - n // s * s for p, n, s in extra)
    return _kernel_gradients(examples, dy, input, weight, steps, (before, after), _per_axis(dilation, axes), groups)


@rewrite(torch.conv_tbc)
def conv_over_time(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over (time, example, channel), with a weight of (offset, channel, output)."""
    output = torch.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return output.permute(2, 0, 1)
