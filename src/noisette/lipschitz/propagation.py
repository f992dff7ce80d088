"""Bounds walk through a network: reaches forward from the input, gradients back from the scores.

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

_INSTEAD = {
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
    """The reach of the module's output. What has no bound and nothing to train may answer anything: it is infinite.

    Raises:
        PrivacyError: nothing is known of a module that trains.
    """
    _refuse_parametrized(module)
    if is_bounded(module):
        return module.bound_forward(x)
    if type(module) is nn.Sequential:
        return _reaches(module, x)[-1]
    if handler := find_bounds(module):
        return handler.bound_forward(module, x)
    _refuse_trained(module)
    return NormBound(math.inf, output_shape(module, x.shape))


def backward(module: nn.Module, x: NormBound, g: float) -> tuple[float, Sensitivities]:
    """Bounds on one example's gradients, where the norm of its gradient at the output is at most ``g``.

    Returns:
        A bound on its gradient at the input, and one for each parameter.

    Raises:
        PrivacyError: nothing is known of a module that trains.
    """
    _refuse_parametrized(module)
    if is_bounded(module):
        return module.bound_backward(x, g)
    if type(module) is nn.Sequential:
        found: list[Sensitivities] = []
        for part, reach in reversed(list(zip(module, _reaches(module, x), strict=False))):
            g, own = backward(part, reach, g)
            found.append(own)
        return g, added(found)
    if handler := find_bounds(module):
        return handler.bound_backward(module, x, g)
    _refuse_trained(module)
    return math.inf, {}


def added(sensitivities: Iterable[Sensitivities]) -> Sensitivities:
    """What one example adds to each parameter's gradient in several places together, by the triangle inequality."""
    total: Counter[Tensor] = Counter()
    for part in sensitivities:
        total.update(part)
    return total


def _reaches(parts: nn.Sequential, x: NormBound) -> list[NormBound]:
    """In front of each part, and behind the last."""
    reaches = [x]
    for part in parts:
        reaches.append(forward(part, reaches[-1]))
    return reaches


def _refuse_parametrized(module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        raise PrivacyError(
            f"{type(module).__name__} has a parametrized weight: how far its map moves the gradient is not known. Take "
            "the parametrization off (torch.nn.utils.parametrize.remove_parametrizations); weights are projected"
        )


def _refuse_trained(module: nn.Module) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        return
    instead = next((way for kind, way in _INSTEAD.items() if isinstance(module, kind)), None)
    raise PrivacyError(
        f"there is no bound on what one example does to the parameters of {type(module).__name__}: "
        + (f"put {instead} in its place" if instead else "write bound_forward and bound_backward for it")
        + ", or freeze it (requires_grad_(False)) in front of a BoundedInput"
    )
