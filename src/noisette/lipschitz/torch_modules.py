"""Bounds of torch's own modules without parameters, and a registry for bounds of other modules.

Source: Bethune et al. 2024, "DP-SGD Without Clipping: The Lipschitz Neural Network Way", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

from noisette.core.state import ModelBuffers
from noisette.errors import PrivacyError
from noisette.lipschitz.protocols import NormBound, Sensitivities


class BoundRule(Protocol):
    """The bounds of a class of modules that does not state them itself; see :class:`noisette.lipschitz.Bounded`."""

    def bound_forward(self, module: Any, x: NormBound) -> NormBound: ...

    def bound_backward(self, module: Any, x: NormBound, g: float) -> tuple[float, Sensitivities]: ...


@dataclass(frozen=True)
class LipschitzFunction:
    """The bounds of a module without parameters that is a Lipschitz function.

    Args:
        constant: its Lipschitz constant, from the module.
        at_zero: bound on the absolute value of each element of f(0), from the module.
        reshapes: whether the output has another shape than the input.
    """

    constant: Callable[[Any], float]
    at_zero: Callable[[Any], float] = lambda module: 0.0
    reshapes: bool = False

    def bound_forward(self, module: nn.Module, x: NormBound) -> NormBound:
        shape = output_shape(module, x.shape) if self.reshapes else x.shape
        return NormBound(self.constant(module) * x.norm + self.at_zero(module) * math.sqrt(math.prod(shape)), shape)

    def bound_backward(self, module: nn.Module, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.constant(module) * g, {}


_SMOOTH_THRESHOLD = 20.0  # torch's own; the step there is 2e-9 / beta

_rules: dict[type[nn.Module], BoundRule] = {}
_shapes: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[int, ...]]] = WeakKeyDictionary()


def register_bounds(module: type[nn.Module], rule: BoundRule) -> None:
    """Register the bounds of a class of modules, for exactly this class and none of its subclasses.

    Guarantee: the caller's alone. The bounds must hold for every input within its norm bound and in every state of the
    module.
    """
    _rules[module] = rule


def find_bounds(module: nn.Module) -> BoundRule | None:
    """The bounds registered for exactly this class."""
    return _rules.get(type(module))


@torch.no_grad()
def output_shape(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one example's output, measured by a call with two examples of zeros, and kept.

    The call writes nothing into the module's buffers.

    Raises:
        PrivacyError: the output does not have two rows, so its first axis no longer holds the examples.
    """
    known, shape = _shapes.setdefault(module, {}), tuple(shape)
    if shape not in known:
        tensor = next(iter([*module.parameters(), *module.buffers()]), torch.empty(0))
        with ModelBuffers(module).lent():
            measured = tuple(module(torch.zeros(2, *shape, device=tensor.device)).shape)
        if measured[:1] != (2,):
            raise PrivacyError(
                f"{type(module).__name__} turns two examples of shape {shape} into a tensor of shape {measured}, but "
                "the first axis must hold the examples"
            )
        known[shape] = measured[1:]
    return known[shape]


def is_measured(module: nn.Module) -> bool:
    """Whether bounds rest on a shape that :func:`output_shape` has measured."""
    return module in _shapes


def check_measured_shape(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """A forward hook: outputs keep the shape that was measured for their input.

    Raises:
        PrivacyError: this one does not, so the modules behind get another input than their bounds are about.
    """
    measured = _shapes.get(module, {}).get(tuple(args[0].shape[1:])) if args and torch.is_grad_enabled() else None
    if measured is not None and tuple(output.shape[1:]) != measured:
        raise PrivacyError(
            f"{type(module).__name__} returned examples of shape {tuple(output.shape[1:])}, but the bounds are those "
            f"of shape {measured}, which it returned at first: no setting, mode or value may change the shape"
        )


def _always(constant: float) -> Callable[[Any], float]:
    return lambda module: constant


def _largest_slope(name: str) -> Callable[[Any], float]:
    return lambda module: max(1.0, abs(getattr(module, name)))


def _of_window_size(constant: Callable[[int], float]) -> Callable[[Any], float]:
    """The Lipschitz constant of a pooling layer as a function of its window size in pixels.

    Raises:
        PrivacyError: (when the constant is computed) windows of the layer overlap or extend beyond the image.
    """

    def from_module(module: Any) -> float:
        kernel, stride = _pair(module.kernel_size), _pair(module.stride)
        if (
            kernel != stride
            or _pair(module.padding) != (0, 0)
            or _pair(getattr(module, "dilation", 1)) != (1, 1)
            or module.ceil_mode
            or getattr(module, "divisor_override", None)
        ):
            raise PrivacyError(
                f"{type(module).__name__} has no bound if its windows overlap or extend beyond the image; give it "
                "stride = kernel_size and no padding, dilation, ceil_mode or divisor"
            )
        return constant(kernel[0] * kernel[1])

    return from_module


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _slope_of_celu(module: nn.CELU) -> float:
    return 1.0 if module.alpha > 0 else math.inf


def _slope_of_rrelu(module: nn.RReLU) -> float:
    return max(1.0, abs(module.lower), abs(module.upper))


def _slope_of_softplus(module: nn.Softplus) -> float:
    """1, if the step to the identity at ``beta x = threshold`` is as small as that of the default.

    Raises:
        PrivacyError: the function jumps there, so it has no Lipschitz constant.
    """
    if module.threshold < _SMOOTH_THRESHOLD:
        raise PrivacyError(
            f"Softplus(threshold={module.threshold:g}) jumps where beta x is {module.threshold:g}, so it has no "
            f"Lipschitz constant; give threshold={_SMOOTH_THRESHOLD:g} or more"
        )
    return 1.0


def _slope_of_dropout(module: nn.Dropout) -> float:
    """That of training in both modes, so that the mode in which a batch is released changes no bound."""
    return 1 / (1 - module.p) if module.p < 1 else 1.0


def _clamped_zero(module: nn.Hardtanh) -> float:
    return abs(min(max(0.0, module.min_val), module.max_val))


for _class in (nn.Identity, nn.ReLU, nn.ReLU6, nn.Tanh, nn.Softsign):
    register_bounds(_class, LipschitzFunction(_always(1.0)))
for _class in (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad2d):
    register_bounds(_class, LipschitzFunction(_always(1.0), reshapes=True))
register_bounds(nn.Hardtanh, LipschitzFunction(_always(1.0), _clamped_zero))
register_bounds(nn.LeakyReLU, LipschitzFunction(_largest_slope("negative_slope")))
register_bounds(nn.RReLU, LipschitzFunction(_slope_of_rrelu))
register_bounds(nn.ELU, LipschitzFunction(_largest_slope("alpha")))
register_bounds(nn.CELU, LipschitzFunction(_slope_of_celu))
register_bounds(nn.SELU, LipschitzFunction(_always(1.7581)))
register_bounds(nn.Sigmoid, LipschitzFunction(_always(0.25), _always(0.5)))
register_bounds(nn.Softplus, LipschitzFunction(_slope_of_softplus, lambda module: math.log(2) / abs(module.beta)))
register_bounds(nn.GELU, LipschitzFunction(_always(1.1290)))
register_bounds(nn.SiLU, LipschitzFunction(_always(1.0999)))
register_bounds(nn.Dropout, LipschitzFunction(_slope_of_dropout))
register_bounds(nn.MaxPool2d, LipschitzFunction(_of_window_size(lambda size: 1.0), reshapes=True))
register_bounds(nn.AvgPool2d, LipschitzFunction(_of_window_size(lambda size: size**-0.5), reshapes=True))
