"""Convolutions in one and two dimensions, with stride, padding, dilation and groups.

No single way to a convolution's per-example gradients wins on every shape, so several exact ones stand here and the
first use of a shape picks the quickest. Axes: b example, c channel, o output channel, h w place, u v kernel offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from noisette.rules._fastest import fastest
from noisette.rules._registry import examples_first, rule
from noisette.rules.gradients import Dense, ExampleGradients, gram_product

F = torch.nn.functional

# Explicit gradients are kept for the weighted sum when they need at most this many times the memory of x and dy.
_KEEP_EXPLICIT = 2


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
        key = (self.geometry, b.bit_length(), self.x.shape[1:], self.dy.shape[1:], self.x.dtype)
        plans = self._plans()
        chosen = fastest(
            key, {name: partial(_rehearse, replace(self), plan) for name, plan in plans.items()}, self.x.device
        )
        return plans[chosen](self)

    def _plans(self) -> dict[str, Callable[[Kernel], Tensor]]:
        """Ways to the squared norms that fit in memory; each leaves ``kept`` set if it has explicit gradients to keep."""
        b, factors = self.x.shape[0], self.x.numel() + self.dy.numel()
        plans: dict[str, Callable[[Kernel], Tensor]] = {}
        places = (self.x.shape[2] + 2 * self.geometry.padding[0]) * (self.x.shape[3] + 2 * self.geometry.padding[1])
        if b * self.geometry.groups * places**2 <= 2 * factors:
            plans["gram"] = gram_norms
        if b * self.shape.numel() <= _KEEP_EXPLICIT * factors:
            plans |= {
                "loop": partial(keep, by_loop),
                "grouped": partial(keep, by_groups),
                "unfold": partial(keep, by_unfold),
            }
        elif not plans:
            plans["loop"] = norms_one_by_one
        return plans

    def explicit(self) -> Tensor:
        gradients = self.kept if self.kept is not None else by_loop(self.x, self.dy, self.geometry, self.shape)
        return gradients.reshape(-1, *self.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept is not None:
            return Dense(self.explicit()).weighted_sum(weights)
        scaled = self.dy * weights.to(self.dy.dtype).view(-1, 1, 1, 1)
        return weight_gradient(self.x, scaled, self.geometry, self.shape).view(self.shape)

    def select(self, examples: Tensor) -> Kernel:
        return Kernel(self.x[examples], self.dy[examples], self.geometry, self.shape)


def _rehearse(form: Kernel, plan: Callable[[Kernel], Tensor]) -> None:
    """The whole work a plan causes: the norms and the weighted sum."""
    form.kept = None
    norms = plan(form)
    form.weighted_sum(norms)


def keep(explicit: Callable[[Tensor, Tensor, Geometry, torch.Size], Tensor], form: Kernel) -> Tensor:
    """Norms of explicit gradients, which stay for the weighted sum."""
    form.kept = explicit(form.x, form.dy, form.geometry, form.shape)
    return torch.linalg.vector_norm(form.kept.flatten(1), dim=1).square()


def norms_one_by_one(form: Kernel) -> Tensor:
    """Norms of explicit gradients formed and dropped example by example."""
    pairs = zip(form.x.split(1), form.dy.split(1), strict=True)
    gradients = (weight_gradient(x, dy, form.geometry, form.shape) for x, dy in pairs)
    return torch.stack([torch.linalg.vector_norm(gradient).square() for gradient in gradients])


def gram_norms(form: Kernel) -> Tensor:
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
    outputs = form.dy.reshape(-1, form.dy.shape[1] // g.groups, rows * columns)
    norms = gram_product(torch.bmm(outputs.transpose(1, 2), outputs), patches.flatten(3).flatten(1, 2))
    return norms.view(form.x.shape[0], g.groups).sum(1)


def weight_gradient(x: Tensor, dy: Tensor, g: Geometry, shape: torch.Size) -> Tensor:
    """The backend's own weight gradient, summed over the batch."""
    weight = x.new_empty(shape[0], shape[1], *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0, 0], g.groups, [False, True, False]
    )[1]


def by_loop(x: Tensor, dy: Tensor, g: Geometry, shape: torch.Size) -> Tensor:
    """Explicit gradients from the backend's kernel, one example after another."""
    pairs = zip(x.split(1), dy.split(1), strict=True)
    return torch.stack([weight_gradient(one, its, g, shape) for one, its in pairs])


def by_groups(x: Tensor, dy: Tensor, g: Geometry, shape: torch.Size) -> Tensor:
    """Explicit gradients from one convolution with a group for every example, in which dy is the kernel."""
    b, c, o = x.shape[0], x.shape[1] // g.groups, dy.shape[1]
    images = x.reshape(b * g.groups, c, *x.shape[2:]).transpose(0, 1)
    kernels = dy.reshape(b * o, 1, *dy.shape[2:])
    out = F.conv2d(
        images, kernels, stride=g.dilation, padding=g.padding, dilation=g.stride, groups=b * g.groups
    )  # a stride that does not divide the image leaves rows and columns too many
    out = out[:, :, : g.kernel[0], : g.kernel[1]]
    return out.reshape(c, b, o, *g.kernel).permute(1, 2, 0, 3, 4)


def by_unfold(x: Tensor, dy: Tensor, g: Geometry, shape: torch.Size) -> Tensor:
    """Explicit gradients as matrix products with the unfolded input."""
    b, o = dy.shape[:2]
    patches = F.unfold(x, g.kernel, g.dilation, g.padding, g.stride)
    patches = patches.view(b * g.groups, -1, patches.shape[2])
    outputs = dy.reshape(b * g.groups, o // g.groups, -1)
    return torch.bmm(outputs, patches.transpose(1, 2)).view(b, o, -1, *g.kernel)


def _pair(value: int | Sequence[int], axes: int) -> tuple[int, int]:
    """Per-axis numbers of a one- or two-dimensional convolution as a pair (a one-dimensional one has height one)."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    values = values * axes if len(values) == 1 else values
    return (1, values[0]) if axes == 1 else (values[0], values[1])


def _kernel_gradients(
    b: int,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> ExampleGradients:
    axes = weight.dim() - 2
    if dy.shape[0] != b:
        raise ValueError(f"its batch of {dy.shape[0]} images is not the batch of {b} examples")
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
    b: int,
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
    return _kernel_gradients(b, dy, input, weight, stride, padding, dilation, groups)


@rule(torch.conv1d, torch.conv2d, operand="bias")
def conv_bias(
    b: int,
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
    return Dense(examples_first(b, dy).flatten(3).sum((1, 3)))
