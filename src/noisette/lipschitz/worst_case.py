"""A search for an example that exceeds the bounds of a network: gradient ascent over inputs and score gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from noisette.core.state import ModelBuffers
from noisette.errors import PrivacyError

_STARTS = 2
_STEPS = 30
_STEP_SIZE = 0.3  # relative to the norm of the variable
_ROUNDING = 2.0**-13


def check_stated_bounds(
    model: nn.Module, shape: tuple[int, ...], limit: float, sensitivities: Mapping[str, float]
) -> None:
    """Check that a short search finds no example that exceeds the bounds, if the model has modules of the user's.

    Raises:
        PrivacyError: it found one.
    """
    kinds = {type(module) for module in model.modules()}
    own = sorted(kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "noisette"))
    if own and (ratio := largest_gradient_ratio(model, shape, limit, sensitivities)) > 1 + _ROUNDING:
        raise PrivacyError(
            f"an example was found whose gradient is {ratio:.4g} times its bound. Bounds of your own modules "
            f"({', '.join(own)}) do not hold: correct their bound_forward, bound_backward or registered bounds"
        )


def largest_gradient_ratio(
    model: nn.Module, shape: tuple[int, ...], limit: float, sensitivities: Mapping[str, float]
) -> float:
    """The largest ratio of one example's gradient norm to its bound that the search found, over all parameters.

    Args:
        model: the network with its current weights.
        shape: of one example.
        limit: norm of the gradient with respect to the scores.
        sensitivities: the bounds, by name of parameter.
    """
    params = dict(model.named_parameters())
    bounds = [(params[name], bound) for name, bound in sensitivities.items()]
    largest = 0.0
    with torch.random.fork_rng(), torch.enable_grad(), ModelBuffers(model).lent():
        torch.manual_seed(0)
        for _ in range(_STARTS):
            start = torch.randn(1, *shape).to(bounds[0][0])
            with suppress(RuntimeError):  # an operation without a second derivative ends the search
                for ratio in _ascent(model, start, limit, bounds):
                    largest = max(largest, ratio)
    return largest


def _ascent(model: nn.Module, x: Tensor, limit: float, bounds: Sequence[tuple[Tensor, float]]) -> Iterator[float]:
    """The ratio at each step of an ascent over the input and the score gradient, whose norm stays at ``limit``."""
    cotangent = torch.randn_like(model(x).detach())
    for _ in range(_STEPS):
        x, cotangent = x.detach().requires_grad_(), cotangent.detach().requires_grad_()
        direction = limit * cotangent / cotangent.norm()
        gradients = torch.autograd.grad((model(x) * direction).sum(), [p for p, _ in bounds], create_graph=True)
        # Squared ratios, because a norm has no derivative at zero.
        ratios = torch.stack([g.square().sum() / bound**2 for g, (_, bound) in zip(gradients, bounds, strict=True)])
        yield float(ratios.detach().max().sqrt())
        climbs = torch.autograd.grad(ratios.sum(), [x, cotangent], materialize_grads=True)
        x, cotangent = (
            value + _STEP_SIZE * value.norm() * climb / climb.norm().clamp(min=torch.finfo(climb.dtype).tiny)
            for value, climb in zip((x, cotangent), climbs, strict=True)
        )
