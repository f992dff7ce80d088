"""Protocols of Lipschitz layers: bounds that a module states, and constraints on its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from noisette.clipping.rules import count_within_norm, twice_the_count
from noisette.core.clip import AdaptiveRule, ClippingRule, Count, Group, clipping_factors
from noisette.core.release import BoundedSum
from noisette.core.state import ModelBuffers
from noisette.errors import PrivacyError


@dataclass(frozen=True)
class NormBound:
    """A bound on the tensor of any one example at one place of a network.

    Args:
        norm: bound on its Euclidean norm over all elements; infinite if none is known.
        shape: its shape, without the batch axis.
    """

    norm: float
    shape: tuple[int, ...]


Sensitivities = Mapping[Tensor, float]  # parameter -> bound on the norm of one example's gradient


class Bounded(Protocol):
    """A module that states bounds on its outputs and gradients, for every input within a norm bound."""

    def bound_forward(self, x: NormBound) -> NormBound:
        """Bound on the output.

        Raises:
            ValueError: the module cannot take an input of this shape.
        """
        ...

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        """Bounds on one example's gradients, if its gradient with respect to the output has a norm of at most ``g``.

        Returns:
            A bound on its gradient with respect to the input, and one for each parameter of the module.
        """
        ...


class Projection(Protocol):
    """A map onto a set of matrices that certifies the spectral norm of each result."""

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest, or nearly nearest, matrices of the set, shape (k, n, m), and their norm bounds, shape (k,).

        Guarantee: the bounds, in double precision, are upper bounds of the true spectral norms.
        """
        ...


class Constrained(Protocol):
    """A module with a parameter that is constrained to a set. Equal ``projection`` objects project the same way."""

    projection: Projection

    def parameters(self) -> Iterator[nn.Parameter]:
        """The constrained parameter, and others if there are any."""
        ...

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m): a view, so writes change the parameter."""
        ...

    def set_certified_norms(self, norms: Tensor) -> None:
        """Store the spectral norms of the matrices, shape (k,), as certified by the projection."""
        ...


# Attribute tests, because an isinstance check of a protocol would take longer than the bounds themselves in each step.


def is_bounded(module: nn.Module) -> TypeGuard[Bounded]:
    """Whether the module states its own bounds."""
    return hasattr(module, "bound_forward") and hasattr(module, "bound_backward")


def is_constrained(module: nn.Module) -> TypeGuard[Constrained]:
    """Whether a parameter of the module is constrained to a set."""
    return hasattr(module, "projection") and hasattr(module, "matrices") and hasattr(module, "set_certified_norms")


_EPS = torch.finfo(torch.float64).eps


def residual_bound(matrices: Tensor) -> Tensor:
    """Bounds on the spectral norms of nearly orthogonal matrices (k, n, m), shape (k,).

    Source: ||A||^2 = ||A'A|| <= 1 + ||A'A - I||_F, where A is the matrix or its transpose, whichever has more rows.
    """
    tall = (matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices.mT).double()
    gram = tall.mT @ tall
    # An entry of A'A sums n products: its error is at most n eps |a||b|. Over all entries that is n eps ||A||_F^2,
    # which is n eps times the trace of A'A.
    rounding = tall.shape[-2] * _EPS * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.sqrt(1 + torch.linalg.matrix_norm(gram) + rounding)


def frobenius_bound(matrices: Tensor) -> Tensor:
    """The Frobenius norms of matrices (k, n, m), which bound their spectral norms, shape (k,)."""
    rounding = math.prod(matrices.shape[-2:]) * _EPS
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=torch.float64) * (1 + rounding)


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


_SCORES = "scores"


class ScoreClipping:
    """Holds each example's gradient at the scores within its bound, which a clipping rule may lower.

    Args:
        rule: a rule with one clipping norm; without it the bound is that of the loss alone.
    """

    def __init__(self, rule: ClippingRule | None) -> None:
        self.rule = rule
        self._group: Group | None = None  # of the current batch: all its microbatches have the same clipping norm
        self._counted: Tensor | None = None
        self._released: Count | None = None  # with the last batch

    @property
    def group(self) -> Group:
        """The clipping of the current batch; an infinite norm without a rule.

        Raises:
            ValueError: the rule has several clipping norms.
        """
        if self._group is None:
            self.adapt()  # also where the optimizer failed after a release
            self._group = Group((_SCORES,), math.inf) if self.rule is None else _single_group(self.rule)
        return self._group

    def clip(self, gradients: Tensor, losses: Tensor, limit: float) -> tuple[Tensor, Tensor | None]:
        """Scale each example's gradient with respect to the scores down to the limit.

        An example whose loss or gradient is not finite contributes nothing. Without a rule nothing else changes, unless
        the loss exceeds its stated Lipschitz constant.

        Args:
            gradients: of each example, (b, ...).
            losses: of each example, (b,).
            limit: bound on the norm of one example's gradient, at most that of the rule.

        Returns:
            The scaled gradients, and twice the count for the quantile of an adaptive clipping norm, where an example
            counts +1/2 within the norm and -1/2 above (``None`` without adaptive clipping).
        """
        norms = gradients.double().flatten(1).norm(dim=1).where(losses.detach().isfinite(), math.nan)
        factors = clipping_factors([Group((_SCORES,), limit, self.group.factor)], norms.unsqueeze(0))[0]
        shape = (-1, *[1] * (gradients.dim() - 1))
        scaled = gradients * factors.to(gradients.dtype).view(shape)
        counted = None if self.group.count is None else twice_the_count(norms, self.group.bound)
        return torch.where(factors.isfinite().view(shape), scaled, 0), counted

    def add_count(self, twice: Tensor | None) -> None:
        """Add the count of a microbatch to that of the batch."""
        if twice is not None:
            self._counted = twice + (self._counted if self._counted is not None else 0)

    def pop_count(self) -> BoundedSum | None:
        """The count of the batch, if the rule counts; nothing is pending afterwards."""
        count, counted = self.group.count, self._counted
        self._group, self._counted, self._released = None, None, count
        return None if count is None else count_within_norm(count, counted)

    def adapt(self) -> None:
        """Give an adaptive rule the count that was released."""
        released = self._released.released.grad if self._released is not None else None
        if isinstance(self.rule, AdaptiveRule) and released is not None:
            self.rule.adapt(released)


def _single_group(rule: ClippingRule) -> Group:
    groups = rule.groups([_SCORES])
    if len(groups) != 1:
        raise ValueError(
            f"logit clipping needs a rule with one clipping norm, such as FlatClipping(0.1), got {type(rule).__name__}"
        )
    return groups[0]
