"""Convolutions and transposed convolutions in one to three dimensions.

The gradient of a kernel is a correlation of images with the gradients at the places the kernel visits. A transposed
convolution is the same with the two exchanged. No single way to it wins on every shape, so several exact ones stand
here and the first use of a shape picks the quickest.

Axes: b example, c channel of the images, o channel of the gradients, then those of the image, place or kernel offset.
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

from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.fastest import fastest
from noisette.gradients.rules.forms import Dense, ExampleGradients, compact, examples_at_once, gram_product
from noisette.gradients.rules.registry import rewrite, rule

F = torch.nn.functional
PerAxis = int | Sequence[int]

# Explicit gradients take the place of their factors when they need at most this many times their memory.
_KEEP_EXPLICIT = 1
# Gradients of so few numbers are kept whatever their factors need, where that is quicker.
_SMALL = 2**22
# Numbers of an unfolded image that a processor multiplies before they leave its cache.
_CACHED = 2**19
# Below this many examples nothing is worth measuring.
_MEASURED_FROM = 16


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over an image, one number for each axis, and the number of groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def offsets(self) -> int:
        return math.prod(self.kernel)


@dataclass(frozen=True)
class Kernel:
    """Per-example gradients of a kernel: G_(o,c,u) = sum_p dy_(o,p) x_(c, stride p + dilation u - padding)."""

    x: Tensor  # (b, c, *image)
    dy: Tensor  # (b, o, *places)
    geometry: Geometry
    weight: torch.Size

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all gradients together: (b, o, c, *kernel)."""
        b, c = self.x.shape[:2]
        return (b, self.dy.shape[1], c // self.geometry.groups, *self.geometry.kernel)

    @property
    def numbers(self) -> int:
        """How many numbers the factors hold."""
        return self.x.numel() + self.dy.numel()

    @property
    def places(self) -> int:
        return self.dy.shape[2:].numel()

    @property
    def has_few_places(self) -> bool:
        """Gram matrices over places hold no more numbers than the gradients; where they do, they never pay."""
        return self.geometry.groups * self.places**2 <= self.weight.numel()

    def squared_norms(self) -> Tensor:
        if len(self.x) == 0:
            return self.dy.new_zeros(0)
        ways = {f"{name}, dropped": _in_parts(partial(dropped, way), self.weight.numel()) for name, way in WAYS.items()}
        if self.has_few_places:
            grams = {name: _in_parts(norms, numbers(self)) for name, (norms, numbers) in GRAMS.items()}
            ways = grams | ways
        return _quickest(self, ways, lambda way: way(self))(self)

    def explicit(self) -> Tensor:
        return written(by_unfold, self).gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.dy * weights.to(self.dy.dtype).view(-1, *[1] * (self.dy.dim() - 1))
        return backend_gradient(self.x, scaled, self.geometry).view(self.weight)

    def select(self, examples: Tensor) -> Kernel:
        return replace(self, x=self.x[examples], dy=self.dy[examples])

    def split(self, size: int) -> list[Kernel]:
        """The same for so many examples at a time."""
        pairs = zip(self.x.split(size), self.dy.split(size), strict=True)
        return [replace(self, x=x, dy=dy) for x, dy in pairs]


Norms = Callable[[Kernel], Tensor]
Explicit = Callable[[Kernel, Tensor], None]  # writes the gradients into the tensor
Way = TypeVar("Way")


@compact.register
def _(form: Kernel) -> ExampleGradients:
    """Written out where that takes no more memory than the factors, unless Gram matrices are quicker."""
    explicit = len(form.x) * form.weight.numel()
    if explicit > max(_KEEP_EXPLICIT * form.numbers, _SMALL):
        return form
    ways: dict[str, Callable[[Kernel], ExampleGradients]] = {}
    if form.has_few_places or explicit > _KEEP_EXPLICIT * form.numbers:
        ways["factors"] = lambda form: form
    for name, way in WAYS.items():
        ways[f"{name}, kept"] = partial(written, way)

    def rehearse(way: Callable[[Kernel], ExampleGradients]) -> None:
        gradients = way(form)
        gradients.weighted_sum(gradients.squared_norms())

    return _quickest(form, ways, rehearse)(form)


def _quickest(form: Kernel, ways: Mapping[str, Way], rehearse: Callable[[Way], object]) -> Way:
    """The way that was quickest for this shape; the first where the batch is too small to measure."""
    if len(form.x) < _MEASURED_FROM:
        return next(iter(ways.values()))
    key = (tuple(ways), form.geometry, len(form.x).bit_length(), form.x.shape[1:], form.dy.shape[1:], form.x.dtype)
    return ways[fastest(key, {name: partial(rehearse, way) for name, way in ways.items()}, form.x.device)]


def written(way: Explicit, form: Kernel) -> Dense:
    """The gradients themselves, in place of their factors."""
    gradients = form.x.new_empty((len(form.x), *form.weight))
    way(form, gradients.view(form.shape))
    return Dense(gradients)


def dropped(way: Explicit, form: Kernel) -> Tensor:
    """Norms of explicit gradients, which are dropped again."""
    return written(way, form).squared_norms()


def _in_parts(norms: Norms, numbers: int) -> Norms:
    """These norms over parts of the batch, given how many numbers one example takes in them."""

    def over_parts(form: Kernel) -> Tensor:
        return torch.cat([norms(part) for part in form.split(examples_at_once(numbers, form.numbers))])

    return over_parts


def backend_gradient(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """The backend's own weight gradient, summed over the batch."""
    weight = x.new_empty(dy.shape[1], x.shape[1] // g.groups, *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0] * len(g.kernel), g.groups, [False, True, False]
    )[1]


def by_unfold(form: Kernel, out: Tensor) -> None:
    """Matrix products with the unfolded images."""
    g, (o, c) = form.geometry, out.shape[1:3]
    at_once = _CACHED if out.device.type == "cpu" else form.numbers
    size = max(1, at_once // (form.x.shape[1] * g.offsets * form.places))
    for part, gradients in zip(form.split(size), out.split(size), strict=True):
        rows = part.x.shape[0] * g.groups
        dy = part.dy.reshape(rows, o // g.groups, form.places)
        torch.bmm(dy, _unfolded(part).transpose(1, 2), out=gradients.view(rows, o // g.groups, c * g.offsets))


def by_loop(form: Kernel, out: Tensor) -> None:
    """The backend's kernel, one example after another."""
    for one, gradient in zip(form.split(1), out.split(1), strict=True):
        gradient.copy_(backend_gradient(one.x, one.dy, one.geometry))


def by_groups(form: Kernel, out: Tensor) -> None:
    """One convolution with a group for every example, in which dy is the kernel."""
    g, (b, o, c) = form.geometry, out.shape[:3]
    groups, axes = b * g.groups, len(g.kernel)
    images = form.x.reshape(groups, c, *form.x.shape[2:]).transpose(0, 1)
    kernels = form.dy.reshape(b * o, 1, *form.dy.shape[2:])
    found = torch.convolution(images, kernels, None, g.dilation, g.padding, g.stride, False, [0] * axes, groups)
    # A stride that does not divide the image leaves offsets too many.
    found = found[(..., *(slice(0, k) for k in g.kernel))]
    out.copy_(found.unflatten(1, (b, o)).movedim(0, 2))


WAYS: dict[str, Explicit] = {"unfold": by_unfold, "loop": by_loop, "grouped": by_groups}


def gram_of_pixels(form: Kernel) -> Tensor:
    """Norms from Gram matrices over places: (D^T D) times (U^T U) with U the unfolded images, which is never formed.

    U^T U at two places is the sum over kernel offsets of the inner products of pixels, so one Gram matrix of the
    padded image serves every offset.
    """
    g, places = form.geometry, form.dy.shape[2:]
    padded = _padded(form.x, g.padding)
    image = padded.shape[2:]
    pixels = padded.reshape(-1, padded.shape[1] // g.groups, image.numel())
    gram = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, *image, *image)
    patches = gram.new_zeros(gram.shape[0], *places, *places)
    for offset in itertools.product(*map(range, g.kernel)):
        moves = zip(offset, g.dilation, g.stride, places, strict=True)
        seen = [slice(u * d, u * d + (n - 1) * s + 1, s) for u, d, s, n in moves]
        patches += gram[(slice(None), *seen, *seen)]
    return _gram_norms(form, patches.view(-1, form.places, form.places))


def gram_of_patches(form: Kernel) -> Tensor:
    """Norms from the same Gram matrices, with the images unfolded: fewer passes where the kernel has many offsets."""
    patches = _unfolded(form)
    return _gram_norms(form, torch.bmm(patches.transpose(1, 2), patches))


def _gram_norms(form: Kernel, patches: Tensor) -> Tensor:
    dy = form.dy.reshape(patches.shape[0], -1, form.places)
    norms = gram_product(torch.bmm(dy.transpose(1, 2), dy), patches)
    return norms.view(-1, form.geometry.groups).sum(1)


def _pixel_numbers(form: Kernel) -> int:
    g = form.geometry
    return g.groups * math.prod(n + 2 * p for n, p in zip(form.x.shape[2:], g.padding, strict=True)) ** 2


def _patch_numbers(form: Kernel) -> int:
    g = form.geometry
    return form.x.shape[1] * g.offsets * form.places + g.groups * form.places**2


# Norms, and how many numbers one example takes in them.
GRAMS: dict[str, tuple[Norms, Callable[[Kernel], int]]] = {
    "gram of pixels": (gram_of_pixels, _pixel_numbers),
    "gram of patches": (gram_of_patches, _patch_numbers),
}


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(x, [n for n in reversed(padding) for _ in range(2)]) if any(padding) else x


def _unfolded(form: Kernel) -> Tensor:
    """Patches of the images, axes (example and group, channel and offset, place)."""
    g = form.geometry
    padded = _padded(form.x, g.padding)
    b, c = padded.shape[:2]
    strides = padded.stride()[2:]
    offsets = [d * s for d, s in zip(g.dilation, strides, strict=True)]
    steps = [d * s for d, s in zip(g.stride, strides, strict=True)]
    windows = padded.as_strided(
        (b, c, *g.kernel, *form.dy.shape[2:]), (*padded.stride()[:2], *offsets, *steps), padded.storage_offset()
    )
    return windows.reshape(b * g.groups, c // g.groups * g.offsets, form.places)


def _per_axis(value: PerAxis, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * axes if len(values) == 1 else values


def _check_batch(examples: Examples, dy: Tensor, weight: Tensor) -> None:
    if dy.dim() < weight.dim():
        raise ValueError(
            f"an image without a batch axis, whose output has shape {tuple(dy.shape)}; give it one with unsqueeze(0)"
        )
    if examples.axis:
        raise ValueError(f"axis {examples.axis} holds the examples; a convolution keeps them apart in axis 0 alone")


def _gradients(
    examples: Examples,
    images: Tensor,
    dy: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, ...], tuple[int, ...]],  # before and after
    dilation: tuple[int, ...],
    groups: int,
) -> Kernel:
    """Gradients of a kernel that visits these images, with dy at the places it visits."""
    _check_batch(examples, dy, weight)
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
    return Kernel(images, dy, Geometry(kernel, stride, before, dilation, groups), weight.shape)


def _bias_gradients(examples: Examples, dy: Tensor, weight: Tensor) -> Dense:
    _check_batch(examples, dy, weight)
    return Dense(examples.first(dy).flatten(3).sum((1, 3)))


@rule(torch.conv1d, torch.conv2d, torch.conv3d, operand="weight")
def conv_weight(
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
    """G_(o,c,u) = sum_p dy_(o,p) x_(c, stride p + dilation u - padding)."""
    axes = weight.dim() - 2
    steps = _per_axis(dilation, axes)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(steps, weight.shape[2:], strict=True)]
        before = tuple(n // 2 for n in total)
        ends = before, tuple(n - m for n, m in zip(total, before, strict=True))
    else:
        before = _per_axis(0 if isinstance(padding, str) else padding, axes)
        ends = before, before
    return _gradients(examples, input, dy, weight, _per_axis(stride, axes), ends, steps, groups)


@rule(torch.conv1d, torch.conv2d, torch.conv3d, operand="bias")
def conv_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> ExampleGradients:
    """G_o = sum_p dy_(o,p)."""
    return _bias_gradients(examples, dy, weight)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, operand="weight")
def conv_transpose_weight(
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
    """G_(c,o,u) = sum_p x_(c,p) dy_(o, stride p + dilation u - padding): dy is the image, x lies at the places."""
    axes = weight.dim() - 2
    steps, before = _per_axis(stride, axes), _per_axis(padding, axes)
    # Output padding of a whole stride would be one place more than x has.
    extra = zip(before, _per_axis(output_padding, axes), steps, strict=True)
    after = tuple(p - n // s * s for p, n, s in extra)
    return _gradients(examples, dy, input, weight, steps, (before, after), _per_axis(dilation, axes), groups)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, operand="bias")
def conv_transpose_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> ExampleGradients:
    """G_o = sum_p dy_(o,p)."""
    return _bias_gradients(examples, dy, weight)


@rewrite(torch.conv_tbc)
def conv_over_time(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over (time, example, channel), with a weight of (offset, channel, output)."""
    output = torch.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return output.permute(2, 0, 1)
