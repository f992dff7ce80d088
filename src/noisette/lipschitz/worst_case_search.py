"""A search for an example that exceeds the bounds of a network: gradient ascent over inputs and score gradients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn

from noisette.core.release import DerivedBound, GradientBound
from noisette.errors import PrivacyError

_STARTS = 2  # made-up examples from which the search starts
_STEPS = 30
_STEP_SIZE = 0.3  # relative to the norm of the variable


def check_worst_case(bound: GradientBound) -> None:
    """If the bound is derived from the network, a short search finds no example that exceeds it.

    Raises:
        PrivacyError: the search found one.
    """
    if not isinstance(bound, DerivedBound):
        return
    weight = next(iter(bound.parameters.values()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        starts = torch.randn(_STARTS, *bound.input_shape).to(weight)
        ratio = max_gradient_ratio(bound.model, starts, bound.score_gradient_bound(), bound.sensitivities())
    if not ratio <= 1 + 1e-5:
        raise PrivacyError(
            f"an example was found whose gradient is {ratio:.4g} times its bound: a module of the model states a bound "
            "that does not hold. Do not train with this model"
        )


def max_gradient_ratio(model: nn.Module, inputs: Tensor, limit: float, sensitivities: Mapping[str, float]) -> float:
    """The largest ratio of one example's gradient norm to its bound that the search found, over all parameters.

    Args:
        model: the network with its current weights.
        inputs: public examples from which separate searches start, shape (b, ...).
        limit: norm of the gradient with respect to the scores.
        sensitivities: the bounds, by name of parameter.
    """
    params = dict(model.named_parameters())
    bounds = [(params[name], bound) for name, bound in sensitivities.items()]
    found = [0.0]
    for example in inputs.detach().split(1):
        # An operation without a second derivative ends the search; ratios found until then count.
        with torch.enable_grad(), suppress(RuntimeError):
            _ascend(model, example, limit, bounds, found)
    return max(found)


def _ascend(
    model: nn.Module, example: Tensor, limit: float, bounds: list[tuple[nn.Parameter, float]], found: list[float]
) -> None:
    """Gradient ascent over the input and the score gradient, whose norm stays at ``limit``.

    It starts at ``example``, a batch of one. ``bounds`` are the parameters with their sensitivities. The largest ratio
    of each step is appended to ``found``.
    """
    x, cotangent = example, torch.randn_like(model(example).detach())
    for _ in range(_STEPS):
        x, cotangent = x.detach().requires_grad_(), cotangent.detach().requires_grad_()
        direction = limit * cotangent / cotangent.norm()
        grads = torch.autograd.grad((model(x) * direction).sum(), [p for p, _ in bounds], create_graph=True)
        # Squared ratios, because a norm has no derivative at zero.
        ratios = torch.stack([g.square().sum() / bound**2 for g, (_, bound) in zip(grads, bounds, strict=True)])
        found.append(float(ratios.detach().max().sqrt()))
        gradients = torch.autograd.grad(ratios.sum(), [x, cotangent])
        x, cotangent = (
            value + _STEP_SIZE * value.norm() * _unit(g) for value, g in zip((x, cotangent), gradients, strict=True)
        )


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp(min=torch.finfo(vector.dtype).tiny)
