"""Convolutions in one and two dimensions, with stride, padding, dilation and groups.

No single way to a convolution's per-example gradients wins on every shape, so several exact ones stand here and the
first use of a shape picks the quickest. Axes: b example, c channel, o output channel, h w place, u v kernel offset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from noisette.rules._examples import Examples
from noisette.rules._fastest import fastest
from noisette.rules._registry import rule
from noisette.rules.gradients import Dense, ExampleGradients, gram_product

F = torch.nn.functional

# Explicit gradients are kept for the weighted sum when they need at most this many times the memory of x and dy.
_KEEP_EXPLICIT = 2
# Work that is dropped again goes over the batch in parts of about this many times the memory of x and dy.
_DROPPED_AT_ONCE = 1
# Below this many examples nothing is worth measuring.
_MEASURED_FROM = 16


@dataclass(frozen=True)
class Geometry:
    """How a two-dimensional convolution moves: per-axis pairs and the number of groups."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass
class Kernel:
    """Per-example gradients of a convolution kernel."""

    x: Tensor  # (b, c, h, w)
    dy: Tensor  # (b, o, h', w')
    geometry: Geometry
    shape: torch.Size  # of the weight
    kept: Tensor | None = None

    def squared_norms(self) -> Tensor:
        b = self.x.shape[0]
        if b == 0:
            return self.dy.new_zeros(0)
        plans = self._plans()
        rehearsals = {name: partial(_rehearse, replace(self), plan) for name, plan in plans.items()}
        if b < _MEASURED_FROM:
            rehearsals = dict([next(iter(rehearsals.items()))])
        key = (self.geometry, b.bit_length(), self.x.shape[1:], self.dy.shape[1:], self.x.dtype)
        return plans[fastest(key, rehearsals, self.x.device)](self)

    def _plans(self) -> dict[str, Plan]:
        """Ways to the squared norms; those that keep explicit gradients leave them in ``kept``."""
        b, factors = self.x.shape[0], self.x.numel() + self.dy.numel()
        outputs, offsets = self.dy[0, 0].numel(), math.prod(self.geometry.kernel)
        pixels = math.prod(n + 2 * p for n, p in zip(self.x.shape[2:], self.geometry.padding, strict=True))
        unfolded = self.x.shape[1] * offsets * outputs
        weights = self.shape.numel()
        plans: dict[str, Plan] = {}
        if outputs <= _MOST_GRAM_PLACES:
            plans["gram of pixels"] = _in_parts(gram_of_pixels, self.geometry.groups * pixels**2)
            plans["gram of patches"] = _in_parts(gram_of_patches, unfolded + self.geometry.groups * outputs**2)
        if b * weights <= _KEEP_EXPLICIT * factors:
            ways = {"loop": by_loop, "grouped": by_groups, "unfold": by_unfold}
            plans |= {f"{name}, kept": partial(keep, way) for name, way in ways.items()}
        else:
            plans["loop, dropped"] = _in_parts(partial(drop, by_loop), weights)
            plans["grouped, dropped"] = _in_parts(partial(drop, by_groups), weights)
            plans["unfold, dropped"] = _in_parts(partial(drop, by_unfold), weights + unfolded)
        return plans

    def explicit(self) -> Tensor:
        gradients = self.kept if self.kept is not None else by_loop(self.x, self.dy, self.geometry)
        return gradients.reshape(-1, *self.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept is not None:
            return Dense(self.explicit()).weighted_sum(weights)
        scaled = self.dy * weights.to(self.dy.dtype).view(-1, 1, 1, 1)
        return weight_gradient(self.x, scaled, self.geometry).view(self.shape)

    def select(self, examples: Tensor) -> Kernel:
        return Kernel(self.x[examples], self.dy[examples], self.geometry, self.shape)


Plan = Callable[[Kernel], Tensor]
Explicit = Callable[[Tensor, Tensor, Geometry], Tensor]
# Gram matrices over more places than this never pay.
_MOST_GRAM_PLACES = 1024


def _rehearse(form: Kernel, plan: Plan) -> None:
    """The whole work a plan causes: the norms and the weighted sum."""
    form.kept = None
    norms = plan(form)
    form.weighted_sum(norms)


def _in_parts(plan: Plan, numbers: int) -> Plan:
    """The plan over parts of the batch, given how many numbers one example takes in it."""

    def over_parts(form: Kernel) -> Tensor:
        size = max(1, _DROPPED_AT_ONCE * (form.x.numel() + form.dy.numel()) // numbers)
        pairs = zip(form.x.split(size), form.dy.split(size), strict=True)
        return torch.cat([plan(replace(form, x=x, dy=dy)) for x, dy in pairs])

    return over_parts


def keep(explicit: Explicit, form: Kernel) -> Tensor:
    """Norms of explicit gradients, which stay for the weighted sum."""
    form.kept = explicit(form.x, form.dy, form.geometry)
    return torch.linalg.vector_norm(form.kept.flatten(1), dim=1).square()


def drop(explicit: Explicit, form: Kernel) -> Tensor:
    """Norms of explicit gradients, which are dropped again."""
    return torch.linalg.vector_norm(explicit(form.x, form.dy, form.geometry).flatten(1), dim=1).square()


def gram_of_pixels(form: Kernel) -> Tensor:
    """Norms from Gram matrices over places: (D^T D) times (U^T U) with U the unfolded input, which is never formed.

    U^T U at places (r, s) is the sum over kernel offsets of the inner products of pixels, so one Gram matrix of the
    padded image serves every offset.
    """
    g = form.geometry
    padded = F.pad(form.x, (g.padding[1], g.padding[1], g.padding[0], g.padding[0]))
    (h, w), (rows, columns) = padded.shape[2:], form.dy.shape[2:]
    pixels = padded.reshape(-1, padded.shape[1] // g.groups, h * w)
    gram = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, h, w, h, w)
    patches = gram.new_zeros(gram.shape[0], rows, columns, rows, columns)
    for u in range(g.kernel[0]):
        for v in range(g.kernel[1]):
            i = slice(u * g.dilation[0], u * g.dilation[0] + (rows - 1) * g.stride[0] + 1, g.stride[0])
            j = slice(v * g.dilation[1], v * g.dilation[1] + (columns - 1) * g.stride[1] + 1, g.stride[1])
            patches += gram[:, i, j, i, j]
    return _gram_norms(form, patches.flatten(3).flatten(1, 2))


def gram_of_patches(form: Kernel) -> Tensor:
    """Norms from the same Gram matrices, with the input unfolded: fewer passes where the kernel has many offsets."""
    g = form.geometry
    patches = _unfolded(form.x, g)
    return _gram_norms(form, torch.bmm(patches.transpose(1, 2), patches))


def _gram_norms(form: Kernel, patches: Tensor) -> Tensor:
    outputs = form.dy.reshape(patches.shape[0], -1, patches.shape[1])
    norms = gram_product(torch.bmm(outputs.transpose(1, 2), outputs), patches)
    return norms.view(form.x.shape[0], form.geometry.groups).sum(1)


def _unfolded(x: Tensor, g: Geometry) -> Tensor:
    """Patches of the input, axes (example and group, channel and offset, place)."""
    patches = F.unfold(x, g.kernel, g.dilation, g.padding, g.stride)
    return patches.view(x.shape[0] * g.groups, -1, patches.shape[2])


def weight_gradient(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """The backend's own weight gradient, summed over the batch."""
    weight = x.new_empty(dy.shape[1], x.shape[1] // g.groups, *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0, 0], g.groups, [False, True, False]
    )[1]


def by_loop(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """Explicit gradients from the backend's kernel, one example after another."""
    pairs = zip(x.split(1), dy.split(1), strict=True)
    return torch.stack([weight_gradient(one, its, g) for one, its in pairs])


def by_groups(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """Explicit gradients from one convolution with a group for every example, in which dy is the kernel."""
    b, c, o = x.shape[0], x.shape[1] // g.groups, dy.shape[1]
    images = x.reshape(b * g.groups, c, *x.shape[2:]).transpose(0, 1)
    kernels = dy.reshape(b * o, 1, *dy.shape[2:])
    out = F.conv2d(
        images, kernels, stride=g.dilation, padding=g.padding, dilation=g.stride, groups=b * g.groups
    )  # a stride that does not divide the image leaves rows and columns too many
    out = out[:, :, : g.kernel[0], : g.kernel[1]]
    return out.reshape(c, b, o, *g.kernel).permute(1, 2, 0, 3, 4)


def by_unfold(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """Explicit gradients as matrix products with the unfolded input."""
    b, o = dy.shape[:2]
    patches = _unfolded(x, g)
    outputs = dy.reshape(patches.shape[0], o // g.groups, -1)
    return torch.bmm(outputs, patches.transpose(1, 2)).view(b, o, -1, *g.kernel)


def _pair(value: int | Sequence[int], axes: int) -> tuple[int, int]:
    """Per-axis numbers of a one- or two-dimensional convolution as a pair (a one-dimensional one has height one)."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    values = values * axes if len(values) == 1 else values
    return (1, values[0]) if axes == 1 else (values[0], values[1])


def _kernel_gradients(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> ExampleGradients:
    axes = weight.dim() - 2
    examples.require_first(dy)
    if axes == 1:
        input, dy = input.unsqueeze(2), dy.unsqueeze(2)
    kernel, steps = _pair(weight.shape[2:], axes), _pair(dilation, axes)
    if isinstance(padding, str):
        input, places = _pad_by_name(input, padding, kernel, steps), (0, 0)
    else:
        places = _pair(padding, axes)
        places = (0, places[1]) if axes == 1 else places
    return Kernel(input, dy, Geometry(kernel, _pair(stride, axes), places, steps, groups), weight.shape)


def _pad_by_name(x: Tensor, padding: str, kernel: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
    """``same`` pads to keep the size, the odd one at the end; ``valid`` pads nothing."""
    if padding == "valid":
        return x
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return F.pad(x, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))


@rule(torch.conv1d, torch.conv2d, operand="weight")
def conv_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ExampleGradients:
    """G_(o,c,u,v) = sum over places of dy_o times x_c shifted by (u, v)."""
    return _kernel_gradients(examples, dy, input, weight, stride, padding, dilation, groups)


@rule(torch.conv1d, torch.conv2d, operand="bias")
def conv_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ExampleGradients:
    """G_o = sum over places of dy_o."""
    return Dense(examples.first(dy).flatten(3).sum((1, 3)))
