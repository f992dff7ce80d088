"""Bounds of torch's own modules that have no parameters, and of modules that a user vouches for.

Source: Bethune et al. 2024, "DP-SGD Without Clipping: The Lipschitz Neural Network Way", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

from noisette.errors import PrivacyError
from noisette.lipschitz.protocols import NormBound, Sensitivities


class Handler(Protocol):
    """What :class:`noisette.lipschitz.Bounded` asks of a module, for a class that cannot say it itself."""

    def bound_forward(self, module: Any, x: NormBound) -> NormBound: ...

    def bound_backward(self, module: Any, x: NormBound, g: float) -> tuple[float, Sensitivities]: ...


@dataclass(frozen=True)
class Stretch:
    """A function that stretches no difference by more than ``factor``; ``at_zero`` is each number of f(0), at most."""

    factor: Callable[[Any], float]
    at_zero: Callable[[Any], float] = lambda module: 0.0
    reshapes: bool = False

    def bound_forward(self, module: nn.Module, x: NormBound) -> NormBound:
        shape = output_shape(module, x.shape) if self.reshapes else x.shape
        return NormBound(self.factor(module) * x.norm + self.at_zero(module) * math.sqrt(math.prod(shape)), shape)

    def bound_backward(self, module: nn.Module, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.factor(module) * g, {}


_handlers: dict[type[nn.Module], Handler] = {}
_shapes: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[int, ...]]] = WeakKeyDictionary()


def register_bounds(module: type[nn.Module], handler: Handler) -> None:
    """Vouch for a class of modules: what the handler says of it is believed, of this class alone and no subclass.

    Guarantee: none of ours. The bounds must hold for every input within the reach and every state of the module.
    """
    _handlers[module] = handler


def find_bounds(module: nn.Module) -> Handler | None:
    """The handler of exactly this class."""
    return _handlers.get(type(module))


@torch.no_grad()
def output_shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one example behind the module, found by a call with zeros and remembered."""
    known = _shapes.setdefault(module, {})
    if shape not in known:
        held = next(iter([*module.parameters(), *module.buffers()]), torch.empty(0))
        known[shape] = tuple(module(torch.zeros(1, *shape, device=held.device)).shape[1:])
    return known[shape]


def _exactly(factor: float) -> Callable[[Any], float]:
    return lambda module: factor


def _largest_slope(name: str) -> Callable[[Any], float]:
    return lambda module: max(1.0, abs(getattr(module, name)))


def _of_whole_windows(factor: Callable[[int], float]) -> Callable[[Any], float]:
    """A factor of windows that neither overlap nor reach over the edge, from the size of a window."""

    def of(module: Any) -> float:
        kernel, stride = _pair(module.kernel_size), _pair(module.stride)
        plain = _pair(getattr(module, "dilation", 1)) == (1, 1) and not module.ceil_mode
        if (
            kernel != stride
            or _pair(module.padding) != (0, 0)
            or not plain
            or getattr(module, "divisor_override", None)
        ):
            raise PrivacyError(
                f"{type(module).__name__} has no bound where windows overlap or reach over the edge; give it stride = "
                "kernel_size and no padding, dilation, ceil_mode or divisor"
            )
        return factor(kernel[0] * kernel[1])

    return of


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


for _class in (nn.Identity, nn.ReLU, nn.Tanh):
    register_bounds(_class, Stretch(_exactly(1.0)))
for _class in (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad2d):
    register_bounds(_class, Stretch(_exactly(1.0), reshapes=True))
register_bounds(nn.Hardtanh, Stretch(_exactly(1.0), lambda module: abs(min(max(0.0, module.min_val), module.max_val))))
register_bounds(nn.LeakyReLU, Stretch(_largest_slope("negative_slope")))
register_bounds(nn.ELU, Stretch(_largest_slope("alpha")))
register_bounds(nn.Sigmoid, Stretch(_exactly(0.25), _exactly(0.5)))
register_bounds(nn.Softplus, Stretch(_exactly(1.0), lambda module: math.log(2) / module.beta))
register_bounds(nn.GELU, Stretch(_exactly(1.1290)))
register_bounds(nn.SiLU, Stretch(_exactly(1.0999)))
register_bounds(nn.Dropout, Stretch(lambda module: 1 / (1 - module.p) if module.training else 1.0))
register_bounds(nn.MaxPool2d, Stretch(_of_whole_windows(lambda size: 1.0), reshapes=True))
register_bounds(nn.AvgPool2d, Stretch(_of_whole_windows(lambda size: size**-0.5), reshapes=True))
