"""Convolutions: per-example gradients of kernels and biases, by the plan that is fastest for each shape.

A plan computes the gradients of a kernel, or their norms, exactly. Which of them is fastest depends on the shape and
the device, so they are measured at the first use of a shape.
"""

import math
import timeit
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from noisette.core import forms
from noisette.core.forms import Dense, ExampleGradients, Examples, compact, rule
from noisette.rules.linear import unbroadcast_channels

F = torch.nn.functional
PerAxis = int | Sequence[int]
Explicit = Callable[["KernelGradients"], Tensor]  # gradients (b, o, c / groups, *kernel)
Norms = Callable[["KernelGradients"], Tensor]  # squared norms, (b,)
Plan = TypeVar("Plan")

# Of several exact plans, the one that was fastest for this shape on this device

_WINNERS: dict[Hashable, str] = {}
_FEW_OPERATIONS = ContextVar("few_operations", default=False)
operations_are_few = _FEW_OPERATIONS.get  # whether the call is within :func:`few_operations`


@contextmanager
def few_operations() -> Iterator[None]:
    """Within it only plans are chosen whose number of operations does not depend on the number of examples.

    For a step that is traced: a graph of thousands of nodes takes minutes to compile. Run the same step within this
    context before the trace, so that its plans are measured.
    """
    token = _FEW_OPERATIONS.set(True)
    try:
        yield
    finally:
        _FEW_OPERATIONS.reset(token)


def fastest(key: Hashable, candidates: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """Name of the fastest candidate for this key, measured at its first use.

    Under ``torch.use_deterministic_algorithms(True)`` nothing is measured and the first candidate is chosen, so that
    two runs have the same rounding errors. Within a trace nothing is measured: it would mean nothing, and all
    candidates would be part of the graph; a RuntimeError if nothing was measured before.
    """
    if torch.are_deterministic_algorithms_enabled() or len(candidates) == 1:
        return next(iter(candidates))
    key = (key, operations_are_few(), device.type, torch.get_num_threads())
    if key not in _WINNERS:
        if get_proxy_mode() is not None:
            raise RuntimeError(
                f"nothing was measured for the plans {', '.join(candidates)}; run the step once within "
                "few_operations() before it is traced"
            )
        # The first call of a backend includes choosing and compiling its kernels, so each candidate is called twice.
        first = {name: _best_time(candidate, device, 2) for name, candidate in candidates.items()}
        close = [name for name, seconds in first.items() if seconds < 2 * min(first.values())]
        _WINNERS[key] = min(close, key=lambda name: _best_time(candidates[name], device, 3))
    return _WINNERS[key]


def _best_time(candidate: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The shortest time of some calls, in seconds; a GPU is waited for."""

    def call() -> None:
        candidate()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return min(timeit.repeat(call, number=1, repeat=repeats))


# The factors of the gradients of a kernel, and the plans that multiply them


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, padding and dilation of each axis, and the number of groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


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
        return self.x.numel() + self.dy.numel()

    @property
    def size_of_an_example(self) -> int:
        return self.x.shape[1:].numel() + self.dy.shape[1:].numel()

    @property
    def positions(self) -> int:
        return self.dy.shape[2:].numel()

    @property
    def unfolded_size(self) -> int:
        """Number of elements of one example's unfolded image."""
        return self.x.shape[1] * math.prod(self.geometry.kernel) * self.positions

    def select(self, examples: Tensor | slice) -> Self:
        return replace(self, x=self.x[examples], dy=self.dy[examples])

    def split(self, size: int) -> list[Self]:
        return [self.select(slice(start, start + size)) for start in range(0, len(self.x), size)]

    def padded(self) -> Tensor:
        padding = self.geometry.padding
        return F.pad(self.x, [n for n in reversed(padding) for _ in range(2)]) if any(padding) else self.x

    def unfolded(self) -> Tensor:
        """Patches of the images, axes (example and group, channel and offset, position).

        ``as_strided`` reads pixel stride p + dilation u for output position p and kernel offset u without a copy of the
        image: a step of p moves ``stride`` pixels, a step of u moves ``dilation`` pixels.
        """
        g, padded = self.geometry, self.padded()
        b, c = padded.shape[:2]
        strides = padded.stride()[2:]
        offsets = [d * s for d, s in zip(g.dilation, strides, strict=True)]
        steps = [d * s for d, s in zip(g.stride, strides, strict=True)]
        windows = padded.as_strided(
            (b, c, *g.kernel, *self.dy.shape[2:]), (*padded.stride()[:2], *offsets, *steps), padded.storage_offset()
        )
        return windows.reshape(b * g.groups, c // g.groups * math.prod(g.kernel), self.positions)

    @property
    def has_few_positions(self) -> bool:
        """Gram matrices over positions are no larger than the gradients; where they are larger, they never pay off."""
        return self.geometry.groups * self.positions**2 <= self.weight.numel()

    @property
    def affordable(self) -> int:
        """Number of temporary elements per example that a plan may need: twice the gradient's, or the factors'.

        A patch embedding of kernel and stride 16 on images of 224 x 224 would take a Gram matrix of pixels of 10 GB.
        """
        return max(2 * self.weight.numel(), _SMALL, self.size_of_an_example)

    def squared_norms(self) -> Tensor:
        return _fastest_plan(self, norm_plans(self), lambda plan: plan(self))(self)

    def explicit(self) -> Tensor:
        plan, _ = next(iter(fitting(self, explicit_plans()).values()))
        return written(plan, self).gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return backend_gradient(self.x, forms.scale_rows(self.dy, weights), self.geometry).view(self.weight)


def backend_gradient(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """The backend's own weight gradient (o, c / groups, *kernel), summed over the batch."""
    weight = x.new_empty(dy.shape[1], x.shape[1] // g.groups, *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0] * len(g.kernel), g.groups, [False, True, False]
    )[1]


_CACHED = 2**19  # elements of an unfolded image that a processor multiplies before they leave its cache


def by_unfold(form: KernelGradients) -> Tensor:
    """Matrix products of dy (o, positions) and the unfolded images (positions, channels and offsets).

    They are computed in parts, or for the whole batch where operations are few.
    """
    if operations_are_few():
        return torch.bmm(*_matrices(form)).view(form.shape)
    out = form.x.new_empty(form.shape)
    size = max(1, (_CACHED if out.device.type == "cpu" else form.factors_size) // form.unfolded_size)
    for part, gradients in zip(form.split(size), out.split(size), strict=True):
        dy, patches = _matrices(part)
        torch.bmm(dy, patches, out=gradients.view(len(dy), dy.shape[1], patches.shape[2]))
    return out


def _matrices(form: KernelGradients) -> tuple[Tensor, Tensor]:
    """(example and group, o / groups, position) and (example and group, position, channel and offset)."""
    patches = form.unfolded().transpose(1, 2)
    return form.dy.reshape(len(patches), form.dy.shape[1] // form.geometry.groups, form.positions), patches


def by_loop(form: KernelGradients) -> Tensor:
    """The backend's weight gradient, one example after another."""
    out = form.x.new_empty(form.shape)
    for one, gradient in zip(form.split(1), out, strict=True):
        gradient.copy_(backend_gradient(one.x, one.dy, one.geometry))
    return out


def by_backend(form: KernelGradients) -> Tensor:
    """One weight gradient of the backend, of a single image that has the channels of every example as groups."""
    x, dy = (factor.reshape(1, -1, *factor.shape[2:]) for factor in (form.x, form.dy))
    return backend_gradient(x, dy, replace(form.geometry, groups=len(form.x) * form.geometry.groups)).view(form.shape)


def by_groups(form: KernelGradients) -> Tensor:
    """One convolution with a group for every example and dy as its kernel.

    The roles of stride and dilation are exchanged: two neighbouring outputs of this convolution are two neighbouring
    kernel offsets, ``dilation`` pixels apart; two neighbouring elements of dy are ``stride`` pixels apart.
    """
    g, (b, o, c) = form.geometry, form.shape[:3]
    groups, axes = b * g.groups, len(g.kernel)
    images = form.x.reshape(groups, c, *form.x.shape[2:]).transpose(0, 1)
    kernels = form.dy.reshape(b * o, 1, *form.dy.shape[2:])
    gradients = torch.convolution(images, kernels, None, g.dilation, g.padding, g.stride, False, [0] * axes, groups)
    # Where the stride does not divide the image, there are more outputs than kernel offsets.
    gradients = gradients[(..., *(slice(0, k) for k in g.kernel))]
    return gradients.unflatten(1, (b, o)).movedim(0, 2).contiguous()


Size = Callable[[KernelGradients], int]  # temporary elements per example
EXPLICIT_PLANS: dict[str, tuple[Explicit, Size]] = {
    "unfold": (by_unfold, lambda form: form.unfolded_size + form.weight.numel()),
    "loop": (by_loop, lambda form: form.weight.numel()),
    "backend": (by_backend, lambda form: form.weight.numel()),
    "grouped": (by_groups, lambda form: 2 * form.weight.numel()),
}


def gram_of_pixels(form: KernelGradients) -> Tensor:
    """Norms from one Gram matrix of the padded image; the unfolded image is never formed.

    The entry (p, q) of U^T U is the sum over kernel offsets u of the inner product of pixels p + u and q + u, so one
    Gram matrix serves every offset. For a kernel of 2 in one dimension, it is gram[p, q] + gram[p + 1, q + 1]. In more
    dimensions the sum is taken along one axis of the kernel after another.
    """
    g, positions = form.geometry, form.dy.shape[2:]
    padded = form.padded()
    image = padded.shape[2:]
    pixels = padded.reshape(-1, padded.shape[1] // g.groups, image.numel())
    patches = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, *image, *image)
    for axis, (offsets, dilation, stride, n) in enumerate(zip(g.kernel, g.dilation, g.stride, positions, strict=True)):
        seen = (slice(u * dilation, u * dilation + (n - 1) * stride + 1, stride) for u in range(offsets))
        before, between = [slice(None)] * (1 + axis), [slice(None)] * (len(image) - 1)
        shifted = [patches[(*before, pixel, *between, pixel)] for pixel in seen]
        patches = sum(shifted[1:], shifted[0])
    return _gram_norms(form, patches.reshape(-1, form.positions, form.positions))


def gram_of_patches(form: KernelGradients) -> Tensor:
    """Norms from the same Gram matrices, with the images unfolded: fewer passes where the kernel has many offsets."""
    patches = form.unfolded()
    return _gram_norms(form, torch.bmm(patches.transpose(1, 2), patches))


def _gram_norms(form: KernelGradients, patches: Tensor) -> Tensor:
    """Squared norms (b,) from the Gram matrices of patches, (example and group, position, position)."""
    dy = form.dy.reshape(patches.shape[0], -1, form.positions)
    return forms.gram_product(torch.bmm(dy.transpose(1, 2), dy), patches).view(-1, form.geometry.groups).sum(1)


def _pixel_gram_size(form: KernelGradients) -> int:
    g = form.geometry
    return g.groups * math.prod(n + 2 * p for n, p in zip(form.x.shape[2:], g.padding, strict=True)) ** 2


GRAM_PLANS: dict[str, tuple[Norms, Size]] = {
    "gram of pixels": (gram_of_pixels, _pixel_gram_size),
    "gram of patches": (gram_of_patches, lambda form: form.unfolded_size + form.geometry.groups * form.positions**2),
}


# Explicit gradients of at most so many times the factors' memory replace them: as a rule, and where operations are few.
_KEEP_EXPLICIT, _KEEP_IN_A_GRAPH = 1, 3
# Explicit gradients of at most this many elements may replace their factors whatever their sizes, where that is faster.
_SMALL = 2**22
_MEASURED_FROM = 16  # examples; below nothing is measured
# Where operations are few: a part's temporary elements in multiples of the whole batch's factors, and the parts.
_PART, _PARTS = 2, 4


def explicit_plans() -> dict[str, tuple[Explicit, Size]]:
    """The plans for explicit gradients, but for the one whose number of operations depends on the batch."""
    return {name: plan for name, plan in EXPLICIT_PLANS.items() if name != "loop" or not operations_are_few()}


def norm_plans(form: KernelGradients) -> dict[str, Norms]:
    """The plans for norms whose temporary memory is affordable, over parts of the batch.

    Where operations are few there are at most ``_PARTS`` parts, whose number follows from the shape of an example.
    """
    plans = dict(GRAM_PLANS) if form.has_few_positions else {}
    for name, (plan, size) in explicit_plans().items():
        plans[f"{name}, dropped"] = lambda form, plan=plan: written(plan, form).squared_norms(), size
    found: dict[str, Norms] = {}
    for name, (norms, size) in fitting(form, plans).items():
        count = forms.examples_at_once(size, form.factors_size)
        if operations_are_few():
            count = math.ceil(len(form.x) / min(_PARTS, math.ceil(size / (_PART * form.size_of_an_example))))
        found[name] = partial(_in_parts, norms, count)
    return found


def fitting(form: KernelGradients, plans: Mapping[str, tuple[Plan, Size]]) -> dict[str, tuple[Plan, int]]:
    """The plans that need little temporary memory, with their numbers of temporary elements per example.

    Where operations are few, that is a few times the factors, or what the smallest plan needs.
    """
    sizes = {name: size(form) for name, (_, size) in plans.items()}
    few = max(_PARTS * _PART * form.size_of_an_example, min(sizes.values()))
    most = few if operations_are_few() else form.affordable
    return {name: (plan, sizes[name]) for name, (plan, _) in plans.items() if sizes[name] <= most}


@compact.register
def _(form: KernelGradients) -> ExampleGradients:
    """Written out where that takes no more memory than the factors, unless Gram matrices are faster."""
    explicit_size = len(form.x) * form.weight.numel()
    keep = _KEEP_IN_A_GRAPH if operations_are_few() else _KEEP_EXPLICIT
    if explicit_size > max(keep * form.factors_size, _SMALL):
        return form
    plans: dict[str, Callable[[KernelGradients], ExampleGradients]] = {}
    if form.has_few_positions or explicit_size > _KEEP_EXPLICIT * form.factors_size:
        plans["factors"] = lambda form: form
    for name, (plan, _) in fitting(form, explicit_plans()).items():
        plans[f"{name}, kept"] = partial(written, plan)

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


def written(plan: Explicit, form: KernelGradients) -> Dense:
    """The explicit gradients, which replace their factors."""
    return Dense(plan(form).view(len(form.x), *form.weight))


def _in_parts(norms: Norms, count: int, form: KernelGradients) -> Tensor:
    """The same norms, computed for this many examples at a time."""
    found = [norms(part) for part in form.split(count)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _per_axis(value: PerAxis, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * axes if len(values) == 1 else values


def _kernel_gradients(
    examples: Examples, images: Tensor, dy: Tensor, weight: Tensor, g: Geometry, after: tuple[int, ...]
) -> KernelGradients:
    """Gradients of a kernel on images (n, c, *image), with ``dy`` (n, o, *positions) and n images in all examples.

    The padding of the geometry stands before the image, and ``after`` behind it.
    """
    if after != g.padding:
        ends = zip(reversed(g.padding), reversed(after), strict=True)
        images = F.pad(images, [n for pair in ends for n in pair])
        g = replace(g, padding=(0,) * len(after))
    if len(images) != examples.count:
        if len(g.kernel) == 3:
            raise ValueError(f"{len(images)} volumes in a batch of {examples.count} examples")
        # The images of one example become a further axis, on which the kernel has length one.
        images, dy = (examples.first(factor).transpose(1, 2) for factor in (images, dy))
        g = Geometry((1, *g.kernel), (1, *g.stride), (0, *g.padding), (1, *g.dilation), g.groups)
    return KernelGradients(images, dy, g, weight.shape)


@rule(torch.conv1d, torch.conv2d, torch.conv3d, operand=("weight", "bias"))
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
    if operand == "bias" and bias is not None:
        return unbroadcast_channels(examples, dy, bias)
    axes = weight.dim() - 2
    steps = _per_axis(dilation, axes)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(steps, weight.shape[2:], strict=True)]
        before = tuple(n // 2 for n in total)
        after = tuple(n - m for n, m in zip(total, before, strict=True))
    else:
        before = after = _per_axis(0 if isinstance(padding, str) else padding, axes)
    geometry = Geometry(tuple(weight.shape[2:]), _per_axis(stride, axes), before, steps, groups)
    return _kernel_gradients(examples, input, dy, weight, geometry, after)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, operand=("weight", "bias"))
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
    if operand == "bias" and bias is not None:
        return unbroadcast_channels(examples, dy, bias)
    axes = weight.dim() - 2
    steps, before = _per_axis(stride, axes), _per_axis(padding, axes)
    # Output padding of a whole stride would be one position more than x has.
    extra = zip(before, _per_axis(output_padding, axes), steps, strict=True)
    after = tuple(p - n // s * s for p, n, s in extra)
    geometry = Geometry(tuple(weight.shape[2:]), steps, before, _per_axis(dilation, axes), groups)
    return _kernel_gradients(examples, dy, input, weight, geometry, after)
