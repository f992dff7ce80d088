"""Convolutions and transposed convolutions in one to three dimensions.

The gradient of a kernel is a correlation of images with the output's gradients. A transposed convolution is the same
with images and gradients exchanged. No single plan is the fastest for every shape, so this file has several exact ones.
The first use of a shape measures them and keeps the fastest:

- explicit gradients by matrix products with unfolded images, by the backend one example at a time, or by one
  convolution with a group per example; kept where they are no larger than their factors, else computed in parts of the
  batch and dropped once their norms are known;
- norms from Gram matrices over positions, of pixels or of unfolded patches: only for few output positions.

The weighted sum comes from explicit gradients that were kept, else from one weight gradient of the backend.

Axes: b example, c channel of the images, o channel of the gradients, then axes of the image, positions or offsets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from noisette.gradients.rules.autotune import fastest
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients, compact, examples_at_once, gram_product, scale_rows
from noisette.gradients.rules.registry import rewrite, rule_per_operand

F = torch.nn.functional
PerAxis = int | Sequence[int]

# Explicit gradients replace their factors when they need at most this many times the memory of the factors.
_KEEP_EXPLICIT = 1
# Explicit gradients of at most this many elements may replace their factors whatever their sizes, where that is faster.
_SMALL = 2**22
# Elements of an unfolded image that a processor multiplies before they leave its cache.
_CACHED = 2**19
# Below this many examples nothing is measured.
_MEASURED_FROM = 16


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, padding and dilation of each axis, and the number of groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def offsets(self) -> int:
        return math.prod(self.kernel)


@dataclass(frozen=True)
class KernelGradients:
    """G_(o,c,u) = sum_p dy_(o,p) x_(c, stride p + dilation u - padding), for output position p and kernel offset u."""

    x: Tensor  # (b, c, *image)
    dy: Tensor  # (b, o, *positions)
    geometry: Geometry
    weight: torch.Size

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all gradients together: (b, o, c / groups, *kernel)."""
        b, c = self.x.shape[:2]
        return (b, self.dy.shape[1], c // self.geometry.groups, *self.geometry.kernel)

    @property
    def factors_size(self) -> int:
        """Number of elements of the factors."""
        return self.x.numel() + self.dy.numel()

    @property
    def positions(self) -> int:
        return self.dy.shape[2:].numel()

    @property
    def has_few_positions(self) -> bool:
        """Gram matrices over positions are no larger than the gradients; where they are larger, they never pay off."""
        return self.geometry.groups * self.positions**2 <= self.weight.numel()

    @property
    def affordable(self) -> int:
        """Number of temporary elements per example that a plan may need: that of the gradient, or of the factors.

        A patch embedding of kernel and stride 16 on images of 224 x 224 would take a Gram matrix of pixels of 10 GB.
        """
        return max(self.weight.numel(), _SMALL, self.factors_size // max(len(self.x), 1))

    def explicit_plans(self) -> dict[str, Write]:
        """The plans for explicit gradients whose temporary memory is affordable."""
        unfolded = self.x.shape[1] * self.geometry.offsets * self.positions
        return {
            name: write for name, write in EXPLICIT_PLANS.items() if name != "unfold" or unfolded <= self.affordable
        }

    def squared_norms(self) -> Tensor:
        if len(self.x) == 0:
            return self.dy.new_zeros(0)
        size = self.weight.numel()
        explicit = self.explicit_plans()
        plans = {f"{name}, dropped": _in_parts(partial(dropped, write), size) for name, write in explicit.items()}
        if self.has_few_positions:
            sizes = {name: gram_size(self) for name, (_, gram_size) in GRAM_PLANS.items()}
            fitting = [name for name in GRAM_PLANS if sizes[name] <= self.affordable]
            plans = {name: _in_parts(GRAM_PLANS[name][0], sizes[name]) for name in fitting} | plans
        return _fastest_plan(self, plans, lambda plan: plan(self))(self)

    def explicit(self) -> Tensor:
        return written(next(iter(self.explicit_plans().values())), self).gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return backend_gradient(self.x, scale_rows(self.dy, weights), self.geometry).view(self.weight)

    def select(self, examples: Tensor | slice) -> KernelGradients:
        return replace(self, x=self.x[examples], dy=self.dy[examples])

    def split(self, size: int) -> list[KernelGradients]:
        """The same for this many examples at a time."""
        pairs = zip(self.x.split(size), self.dy.split(size), strict=True)
        return [replace(self, x=x, dy=dy) for x, dy in pairs]


Norms = Callable[[KernelGradients], Tensor]  # squared norms, (b,)
Write = Callable[[KernelGradients, Tensor], None]  # writes the gradients into a tensor of the form's shape
Plan = TypeVar("Plan")


@compact.register
def _(form: KernelGradients) -> ExampleGradients:
    """Written out where that takes no more memory than the factors, unless Gram matrices are faster."""
    explicit_size = len(form.x) * form.weight.numel()
    if explicit_size > max(_KEEP_EXPLICIT * form.factors_size, _SMALL):
        return form
    plans: dict[str, Callable[[KernelGradients], ExampleGradients]] = {}
    if form.has_few_positions or explicit_size > _KEEP_EXPLICIT * form.factors_size:
        plans["factors"] = lambda form: form
    for name, write in form.explicit_plans().items():
        plans[f"{name}, kept"] = partial(written, write)

    def rehearse(plan: Callable[[KernelGradients], ExampleGradients]) -> None:
        gradients = plan(form)
        gradients.weighted_sum(gradients.squared_norms())

    return _fastest_plan(form, plans, rehearse)(form)


def _fastest_plan(form: KernelGradients, plans: Mapping[str, Plan], rehearse: Callable[[Plan], object]) -> Plan:
    """The plan whose ``rehearse`` was fastest for this shape; the first where the batch is too small to measure."""
    if len(form.x) < _MEASURED_FROM:
        return next(iter(plans.values()))
    key = (tuple(plans), form.geometry, len(form.x).bit_length(), form.x.shape[1:], form.dy.shape[1:], form.x.dtype)
    return plans[fastest(key, {name: partial(rehearse, plan) for name, plan in plans.items()}, form.x.device)]


def written(write: Write, form: KernelGradients) -> Dense:
    """The explicit gradients, which replace their factors."""
    gradients = form.x.new_empty((len(form.x), *form.weight))
    write(form, gradients.view(form.shape))
    return Dense(gradients)


def dropped(write: Write, form: KernelGradients) -> Tensor:
    """Squared norms (b,) of explicit gradients, which are dropped."""
    return written(write, form).squared_norms()


def _in_parts(norms: Norms, size: int) -> Norms:
    """The same norms, computed over parts of the batch; ``size`` is the number of temporary elements per example."""

    def over_parts(form: KernelGradients) -> Tensor:
        return torch.cat([norms(part) for part in form.split(examples_at_once(size, form.factors_size))])

    return over_parts


def backend_gradient(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """The backend's own weight gradient (o, c / groups, *kernel), summed over the batch."""
    weight = x.new_empty(dy.shape[1], x.shape[1] // g.groups, *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0] * len(g.kernel), g.groups, [False, True, False]
    )[1]


def by_unfold(form: KernelGradients, out: Tensor) -> None:
    """Matrix products of dy (o, positions) and the unfolded images (positions, channels and offsets), in parts."""
    g, (o, c) = form.geometry, out.shape[1:3]
    at_once = _CACHED if out.device.type == "cpu" else form.factors_size
    size = max(1, at_once // (form.x.shape[1] * g.offsets * form.positions))
    for part, gradients in zip(form.split(size), out.split(size), strict=True):
        rows = part.x.shape[0] * g.groups
        dy = part.dy.reshape(rows, o // g.groups, form.positions)
        torch.bmm(dy, _unfolded(part).transpose(1, 2), out=gradients.view(rows, o // g.groups, c * g.offsets))


def by_loop(form: KernelGradients, out: Tensor) -> None:
    """The backend's weight gradient, one example after another."""
    for one, gradient in zip(form.split(1), out.split(1), strict=True):
        gradient.copy_(backend_gradient(one.x, one.dy, one.geometry))


def by_groups(form: KernelGradients, out: Tensor) -> None:
    """One convolution with a group for every example and dy as its kernel.

    The roles of stride and dilation are exchanged: two neighbouring outputs of this convolution are two neighbouring
    kernel offsets, ``dilation`` pixels apart; two neighbouring elements of dy are ``stride`` pixels apart.
    """
    g, (b, o, c) = form.geometry, out.shape[:3]
    groups, axes = b * g.groups, len(g.kernel)
    images = form.x.reshape(groups, c, *form.x.shape[2:]).transpose(0, 1)
    kernels = form.dy.reshape(b * o, 1, *form.dy.shape[2:])
    gradients = torch.convolution(images, kernels, None, g.dilation, g.padding, g.stride, False, [0] * axes, groups)
    # Where the stride does not divide the image, there are more outputs than kernel offsets.
    gradients = gradients[(..., *(slice(0, k) for k in g.kernel))]
    out.copy_(gradients.unflatten(1, (b, o)).movedim(0, 2))


EXPLICIT_PLANS: dict[str, Write] = {"unfold": by_unfold, "loop": by_loop, "grouped": by_groups}


def gram_of_pixels(form: KernelGradients) -> Tensor:
    """Norms from Gram matrices over positions, D^T D and U^T U, where U is the unfolded image, which is never formed.

    G = D U^T for dy as D (o, positions), so |G|^2 = <D^T D, U^T U> as in :meth:`Outer.squared_norms`. The entry (p, q)
    of U^T U is the sum over kernel offsets u of the inner product of pixels p + u and q + u, so one Gram matrix of the
    padded image serves every offset. For a kernel of 2 in one dimension, it is gram[p, q] + gram[p + 1, q + 1].
    """
    g, positions = form.geometry, form.dy.shape[2:]
    padded = _padded(form.x, g.padding)
    image = padded.shape[2:]
    pixels = padded.reshape(-1, padded.shape[1] // g.groups, image.numel())
    gram = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, *image, *image)
    patches = gram.new_zeros(gram.shape[0], *positions, *positions)
    for offset in itertools.product(*map(range, g.kernel)):
        steps = zip(offset, g.dilation, g.stride, positions, strict=True)
        seen = [slice(u * d, u * d + (n - 1) * s + 1, s) for u, d, s, n in steps]
        patches += gram[(slice(None), *seen, *seen)]
    return _gram_norms(form, patches.view(-1, form.positions, form.positions))


def gram_of_patches(form: KernelGradients) -> Tensor:
    """Norms from the same Gram matrices, with the images unfolded: fewer passes where the kernel has many offsets."""
    patches = _unfolded(form)
    return _gram_norms(form, torch.bmm(patches.transpose(1, 2), patches))


def _gram_norms(form: KernelGradients, patches: Tensor) -> Tensor:
    """Squared norms (b,) from the Gram matrices of patches, (example and group, position, position)."""
    dy = form.dy.reshape(patches.shape[0], -1, form.positions)
    norms = gram_product(torch.bmm(dy.transpose(1, 2), dy), patches)
    return norms.view(-1, form.geometry.groups).sum(1)


def _pixel_gram_size(form: KernelGradients) -> int:
    g = form.geometry
    return g.groups * math.prod(n + 2 * p for n, p in zip(form.x.shape[2:], g.padding, strict=True)) ** 2


def _patch_gram_size(form: KernelGradients) -> int:
    g = form.geometry
    return form.x.shape[1] * g.offsets * form.positions + g.groups * form.positions**2


# Plans for the norms, each with its number of temporary elements per example.
GRAM_PLANS: dict[str, tuple[Norms, Callable[[KernelGradients], int]]] = {
    "gram of pixels": (gram_of_pixels, _pixel_gram_size),
    "gram of patches": (gram_of_patches, _patch_gram_size),
}


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(x, [n for n in reversed(padding) for _ in range(2)]) if any(padding) else x


def _unfolded(form: KernelGradients) -> Tensor:
    """Patches of the images, axes (example and group, channel and offset, position).

    ``as_strided`` reads pixel stride p + dilation u for output position p and kernel offset u without a copy of the
    image: a step of p moves ``stride`` pixels, a step of u moves ``dilation`` pixels.
    """
    g = form.geometry
    padded = _padded(form.x, g.padding)
    b, c = padded.shape[:2]
    strides = padded.stride()[2:]
    offsets = [d * s for d, s in zip(g.dilation, strides, strict=True)]
    steps = [d * s for d, s in zip(g.stride, strides, strict=True)]
    windows = padded.as_strided(
        (b, c, *g.kernel, *form.dy.shape[2:]), (*padded.stride()[:2], *offsets, *steps), padded.storage_offset()
    )
    return windows.reshape(b * g.groups, c // g.groups * g.offsets, form.positions)


def _per_axis(value: PerAxis, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * axes if len(values) == 1 else values


def _check_batch(examples: Examples, dy: Tensor, weight: Tensor) -> None:
    if dy.dim() < weight.dim():
        raise ValueError(
            f"an image without a batch axis, whose output has shape {tuple(dy.shape)}; give it one with unsqueeze(0)"
        )
    if examples.axis:
        raise ValueError(f"axis {examples.axis} holds the examples; a convolution needs them on axis 0")


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
    _check_batch(examples, dy, weight)
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
    _check_batch(examples, dy, weight)
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
