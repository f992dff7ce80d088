"""Protocols of Lipschitz layers: bounds that a module states, and constraints on its weights."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair
from torch.nn.utils import parametrize

from noisette.core.loss import ModelBuffers
from noisette.errors import PrivacyError


@dataclass(frozen=True)
class NormBound:
    """A bound on the Euclidean norm of any one example at a place of a network, or infinity, and its shape."""

    norm: float
    shape: tuple[int, ...]


Sensitivities = Mapping[Tensor, float]  # parameter -> bound on the norm of one example's gradient


class Bounded(Protocol):
    """A module that states bounds on its outputs and gradients, for every input within a norm bound."""

    def bound_forward(self, x: NormBound) -> NormBound:
        """Bound on the output; ValueError if the module cannot take an input of this shape."""
        ...

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        """Bounds on one example's gradients by input and parameters, where that by the output is at most ``g``."""
        ...


class Projection(Protocol):
    """A map onto a set of matrices that certifies the spectral norm of each result."""

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest, or nearly nearest, matrices of the set, shape (k, n, m), and their norm bounds, shape (k,).

        Guarantee: the bounds, in double precision, are upper bounds of the true spectral norms.
        """
        ...


def is_bounded(module: nn.Module) -> TypeGuard[Bounded]:
    """Whether the module states its own bounds; an isinstance check of a protocol would take longer than these."""
    return hasattr(module, "bound_forward") and hasattr(module, "bound_backward")


class Shown(nn.Module):
    """A module that shows its plain settings."""

    def extra_repr(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class Stretching(Shown):
    """A Lipschitz module without parameters that maps zero to zero; by default it is 1-Lipschitz and keeps shapes."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one example's output; ValueError if the module cannot take an example of this shape."""
        return shape

    def constant(self, shape: tuple[int, ...]) -> float:
        """The Lipschitz constant for examples of this shape."""
        return 1.0

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.constant(x.shape) * x.norm, self.output_shape(x.shape))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.constant(x.shape) * g, {}


class _Function(NamedTuple):
    """A class of torch's modules without parameters that are Lipschitz functions."""

    constant: Callable[[Any], float]  # the Lipschitz constant of a module
    at_zero: Callable[[Any], float] = lambda module: 0.0  # bounds the absolute value of each element of f(0)
    reshapes: bool = False  # whether the output has another shape than the input


_SMOOTH_THRESHOLD = 20.0  # torch's own; the step there is 2e-9 / beta

_shapes: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[int, ...]]] = WeakKeyDictionary()


@torch.no_grad()
def output_shape(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one example's output, measured by a call with two examples of zeros, and kept; buffers stay."""
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
    """A forward hook: PrivacyError if an output has not the shape that bounds behind it are about."""
    measured = _shapes.get(module, {}).get(tuple(args[0].shape[1:])) if args and torch.is_grad_enabled() else None
    if measured is not None and tuple(output.shape[1:]) != measured:
        raise PrivacyError(
            f"{type(module).__name__} returned examples of shape {tuple(output.shape[1:])}, but the bounds are those "
            f"of shape {measured}, which it returned at first: no setting, mode or value may change the shape"
        )


def _window_pixels(module: Any) -> int:
    """The pixels of a window of a pooling layer; PrivacyError if windows overlap or extend beyond the image."""
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    shifted = _pair(module.padding) != (0, 0) or _pair(getattr(module, "dilation", 1)) != (1, 1) or module.ceil_mode
    if kernel != stride or shifted or getattr(module, "divisor_override", None):
        raise PrivacyError(
            f"{type(module).__name__} has no bound if its windows overlap or extend beyond the image; give it "
            "stride = kernel_size and no padding, dilation, ceil_mode or divisor"
        )
    return kernel[0] * kernel[1]


def _slope_of_softplus(module: nn.Softplus) -> float:
    """1; PrivacyError if the step to the identity at ``beta x = threshold`` is larger than that of the default."""
    if module.threshold < _SMOOTH_THRESHOLD:
        raise PrivacyError(
            f"Softplus(threshold={module.threshold:g}) jumps where beta x is {module.threshold:g}, so it has no "
            f"Lipschitz constant; give threshold={_SMOOTH_THRESHOLD:g} or more"
        )
    return 1.0


# For exactly these classes, and none of their subclasses, which may compute something else.
_rules: dict[type[nn.Module], _Function] = {
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.Tanh), _Function(lambda _: 1.0)),
    **dict.fromkeys((nn.Flatten, nn.Unflatten), _Function(lambda _: 1.0, reshapes=True)),
    nn.LeakyReLU: _Function(lambda own: max(1.0, abs(own.negative_slope))),
    nn.ELU: _Function(lambda own: max(1.0, abs(own.alpha))),
    nn.Sigmoid: _Function(lambda _: 0.25, lambda _: 0.5),
    nn.Softplus: _Function(_slope_of_softplus, lambda own: math.log(2) / abs(own.beta)),
    nn.GELU: _Function(lambda _: 1.1290),
    nn.SiLU: _Function(lambda _: 1.0999),
    # In both modes that of training, so that the mode in which a batch is released changes no bound.
    nn.Dropout: _Function(lambda own: 1 / (1 - own.p) if own.p < 1 else 1.0),
    nn.MaxPool2d: _Function(lambda own: 1.0 if _window_pixels(own) else 0.0, reshapes=True),
    nn.AvgPool2d: _Function(lambda own: _window_pixels(own) ** -0.5, reshapes=True),
}


_REPLACEMENTS = {
    (nn.Linear, nn.Bilinear): "SpectralLinear",
    (nn.Conv2d,): "SpectralConv2d or PatchConv2d",
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm): "no norm, or LayerCentering",
    (nn.PReLU,): "GroupSort2",
    (nn.MultiheadAttention,): "MixerBlock",
}


def forward(module: nn.Module, x: NormBound) -> NormBound:
    """Bound on the output of the module, or infinity; PrivacyError if it has trainable parameters and no bound."""
    _refuse_changed_function(module)
    if is_bounded(module):
        return module.bound_forward(x)
    if type(module) is nn.Sequential:
        for part in module:
            x = forward(part, x)
        return x
    if rule := _rules.get(type(module)):
        shape = output_shape(module, x.shape) if rule.reshapes else x.shape
        return NormBound(rule.constant(module) * x.norm + rule.at_zero(module) * math.sqrt(math.prod(shape)), shape)
    _refuse_trained(module)
    return NormBound(math.inf, output_shape(module, x.shape))


def backward(module: nn.Module, x: NormBound, g: float) -> tuple[float, Sensitivities]:
    """Bounds on one example's gradient by input and parameters, as of :meth:`Bounded.bound_backward`; errors too."""
    _refuse_changed_function(module)
    if is_bounded(module):
        return module.bound_backward(x, g)
    if type(module) is nn.Sequential:
        found: list[Sensitivities] = []
        for _, layer, layer_input in reversed(layers(module, x)):
            g, own = backward(layer, layer_input, g)
            found.append(own)
        return g, sum_sensitivities(found)
    if rule := _rules.get(type(module)):
        return rule.constant(module) * g, {}
    _refuse_trained(module)
    return math.inf, {}


def layers(module: nn.Module, x: NormBound, name: str = "") -> list[tuple[str, nn.Module, NormBound]]:
    """The layers of nested sequential modules in forward order, each use with its name and the bound on its input."""
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
    replacement = next((text for kinds, text in _REPLACEMENTS.items() if isinstance(module, kinds)), None)
    own = "write bound_forward and bound_backward for it"
    advice = f"replace it by {replacement} of noisette.nn.lipschitz" if replacement else own
    raise PrivacyError(
        f"no sensitivity is known for the parameters of {type(module).__name__}: {advice}, or freeze it "
        "(requires_grad_(False)) in front of a BoundedInput"
    )
