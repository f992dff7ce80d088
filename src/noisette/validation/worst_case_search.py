"""A search for the example that a network's bounds should forbid: ascent over inputs and gradients at the scores."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn

_STEPS = 30
_STRIDE = 0.3  # of a step, in units of what moves


def max_gradient_ratio(model: nn.Module, inputs: Tensor, limit: float, sensitivities: Mapping[str, float]) -> float:
    """The largest gradient of one example over its bound that was met, over all parameters.

    Args:
        model: the network under its weights of now.
        inputs: public examples where the ascent starts, shape (b, ...); each climbs on its own.
        limit: norm of the gradient at the scores.
        sensitivities: the bounds, by name of parameter.
    """
    params = dict(model.named_parameters())
    bounds = [(params[name], bound) for name, bound in sensitivities.items()]
    found = [0.0]
    for example in inputs.detach().split(1):
        # Parts of a network that cannot be differentiated twice leave what was met before.
        with torch.enable_grad(), suppress(RuntimeError):
            _climb(model, example, limit, bounds, found)
    return max(found)


def _climb(
    model: nn.Module, example: Tensor, limit: float, bounds: list[tuple[nn.Parameter, float]], found: list[float]
) -> None:
    """Both ways at once: the input, and the gradient at the scores, which stays as long as the loss lets it be."""
    x, cotangent = example, torch.randn_like(model(example).detach())
    for _ in range(_STEPS):
        x, cotangent = x.detach().requires_grad_(), cotangent.detach().requires_grad_()
        direction = limit * cotangent / cotangent.norm()
        grads = torch.autograd.grad((model(x) * direction).sum(), [p for p, _ in bounds], create_graph=True)
        # Squares: a norm has no derivative at zero.
        reached = torch.stack([g.square().sum() / bound**2 for g, (_, bound) in zip(grads, bounds, strict=True)])
        found.append(float(reached.detach().max().sqrt()))
        up = torch.autograd.grad(reached.sum(), [x, cotangent])
        x, cotangent = (
            value + _STRIDE * value.norm() * _unit(way) for value, way in zip((x, cotangent), up, strict=True)
        )


def _unit(way: Tensor) -> Tensor:
    return way / way.norm().clamp(min=torch.finfo(way.dtype).tiny)
