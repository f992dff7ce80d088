"""Propagation of bounds through a network: norms forward from the input, gradient norms backward from the scores.

Source: Bethune et al. 2024, algorithm 1: the vector-Jacobian products of backpropagation become products of bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.utils import parametrize

from noisette.errors import PrivacyError
from noisette.lipschitz.protocols import NormBound, Sensitivities, is_bounded
from noisette.lipschitz.torch_modules import find_bounds, output_shape

_REPLACEMENTS = {
    nn.Linear: "noisette.nn.lipschitz.SpectralLinear",
    nn.Conv2d: "SpectralConv2d or PatchConv2d of noisette.nn.lipschitz",
    nn.Bilinear: "noisette.nn.lipschitz.SpectralLinear",
    nn.BatchNorm1d: "no norm, or LayerCentering of noisette.nn.lipschitz",
    nn.BatchNorm2d: "no norm, or LayerCentering of noisette.nn.lipschitz",
    nn.LayerNorm: "no norm, or LayerCentering of noisette.nn.lipschitz",
    nn.GroupNorm: "no norm, or LayerCentering of noisette.nn.lipschitz",
    nn.PReLU: "GroupSort2 of noisette.nn.lipschitz",
    nn.MultiheadAttention: "MixerBlock of noisette.nn.lipschitz",
}


def forward(module: nn.Module, x: NormBound) -> NormBound:
    """Bound on the output of the module; infinite for a module that has no bound and no trainable parameter.

    Raises:
        PrivacyError: a module with trainable parameters has no bound.
    """
    _refuse_changed_function(module)
    if is_bounded(module):
        return module.bound_forward(x)
    if type(module) is nn.Sequential:
        for part in module:
            x = forward(part, x)
        return x
    if rule := find_bounds(module):
        return rule.bound_forward(module, x)
    _refuse_trained(module)
    return NormBound(math.inf, output_shape(module, x.shape))


def backward(module: nn.Module, x: NormBound, g: float) -> tuple[float, Sensitivities]:
    """Bounds on one example's gradients, where the norm of its gradient with respect to the output is at most ``g``.

    Returns:
        A bound on its gradient with respect to the input, and one for each parameter.

    Raises:
        PrivacyError: a module with trainable parameters has no bound.
    """
    _refuse_changed_function(module)
    if is_bounded(module):
        return module.bound_backward(x, g)
    if type(module) is nn.Sequential:
        found: list[Sensitivities] = []
        for _, layer, layer_input in reversed(layers(module, x)):
            g, own = backward(layer, layer_input, g)
            found.append(own)
        return g, sum_sensitivities(found)
    if rule := find_bounds(module):
        return rule.bound_backward(module, x, g)
    _refuse_trained(module)
    return math.inf, {}


def layers(module: nn.Module, x: NormBound, name: str = "") -> list[tuple[str, nn.Module, NormBound]]:
    """The layers of nested sequential modules in forward order, each with its name and the bound on its input.

    A layer that is used in two places is listed twice.
    """
    if type(module) is not nn.Sequential:
        return [(name, module, x)]
    found: list[tuple[str, nn.Module, NormBound]] = []
    for k, part in enumerate(module):
        found += layers(part, x, f"{name}.{k}" if name else str(k))
        x = forward(part, x)
    return found


def sum_sensitivities(sensitivities: Iterable[Sensitivities]) -> Sensitivities:
    """Sensitivities of parameters that are used in several places: by the triangle inequality they add up."""
    total: Counter[Tensor] = Counter()
    for part in sensitivities:
        total.update(part)
    return total


def _refuse_changed_function(module: nn.Module) -> None:
    """Refuse a module that does not compute what its class does, which is what its bounds are about."""
    if "forward" in vars(module):
        raise PrivacyError(
            f"the forward of a {type(module).__name__} was replaced, and its bounds are those of its class. Remove the "
            "replacement (del module.forward), or write a module with bounds of its own"
        )
    if parametrize.is_parametrized(module):
        raise PrivacyError(
            f"{type(module).__name__} has a parametrized weight, whose map has no known Lipschitz constant. Remove the "
            "parametrization (torch.nn.utils.parametrize.remove_parametrizations); weights are projected instead"
        )


def _refuse_trained(module: nn.Module) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        return
    replacement = next((text for kind, text in _REPLACEMENTS.items() if isinstance(module, kind)), None)
    raise PrivacyError(
        f"no sensitivity is known for the parameters of {type(module).__name__}: "
        + (f"replace it by {replacement}" if replacement else "write bound_forward and bound_backward for it")
        + ", or freeze it (requires_grad_(False)) in front of a BoundedInput"
    )
