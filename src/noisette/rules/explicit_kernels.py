"""Plans that write the per-example gradients of a convolution kernel out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from noisette.rules.kernel_factors import KernelFactors, backend_gradient

Explicit = Callable[[KernelFactors], Tensor]  # gradients (b, o, c / groups, *kernel)

# Elements of an unfolded image that a processor multiplies before they leave its cache.
_CACHED = 2**19


def by_unfold(form: KernelFactors) -> Tensor:
    """Matrix products of dy (o, positions) and the unfolded images (positions, channels and offsets), in parts."""
    out = form.x.new_empty(form.shape)
    at_once = _CACHED if out.device.type == "cpu" else form.factors_size
    size = max(1, at_once // form.unfolded_size)
    for part, gradients in zip(form.split(size), out.split(size), strict=True):
        dy, patches = _matrices(part)
        torch.bmm(dy, patches, out=gradients.view(len(dy), dy.shape[1], patches.shape[2]))
    return out


def by_whole_unfold(form: KernelFactors) -> Tensor:
    """The same with the whole batch as one part."""
    return torch.bmm(*_matrices(form)).view(form.shape)


def _matrices(form: KernelFactors) -> tuple[Tensor, Tensor]:
    """(example and group, o / groups, position) and (example and group, position, channel and offset)."""
    patches = form.unfolded().transpose(1, 2)
    return form.dy.reshape(len(patches), form.dy.shape[1] // form.geometry.groups, form.positions), patches


def by_loop(form: KernelFactors) -> Tensor:
    """The backend's weight gradient, one example after another."""
    out = form.x.new_empty(form.shape)
    for one, gradient in zip(form.split(1), out, strict=True):
        gradient.copy_(backend_gradient(one.x, one.dy, one.geometry))
    return out


def by_backend(form: KernelFactors) -> Tensor:
    """One weight gradient of the backend, of a single image that has the channels of every example as groups."""
    if len(form.x) == 0:
        return form.x.new_empty(form.shape)
    x, dy = (factor.reshape(1, -1, *factor.shape[2:]) for factor in (form.x, form.dy))
    groups = len(form.x) * form.geometry.groups
    return backend_gradient(x, dy, replace(form.geometry, groups=groups)).view(form.shape)


def by_groups(form: KernelFactors) -> Tensor:
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


EXPLICIT_PLANS: dict[str, Explicit] = {
    "unfold": by_unfold,
    "loop": by_loop,
    "backend": by_backend,
    "grouped": by_groups,
}


def few_operations_plans(form: KernelFactors) -> dict[str, tuple[Explicit, int]]:
    """Plans whose number of operations is that of one example, each with its temporary elements per example."""
    size = form.weight.numel()
    return {
        "unfold": (by_whole_unfold, form.unfolded_size + size),
        "backend": (by_backend, size),
        "grouped": (by_groups, 2 * size),
    }
