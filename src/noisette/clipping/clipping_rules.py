"""Clipping rules: which parameters are clipped together, to which bound, and by which factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from noisette._internal import checks

Factor = Callable[[Tensor], Tensor]  # norms (b,) -> factors (b,), each from its own norm alone

# Norms carry rounding errors; clipping to a hair below C keeps the true norm within C.
_SLACK = {torch.float64: 1e-12, torch.float32: 1e-6}
_SLACK_LOW_PRECISION = 1e-2


@dataclass(frozen=True)
class Count:
    """How many examples lie within their bound: a sum of its own, released beside the gradient.

    Each example counts +1/2 or -1/2, so that one moves the sum by 1/2.
    """

    released: Tensor  # its ``.grad`` will hold the noised count over the expected batch size
    share: float  # of the noise's budget


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together, and the most one example can move their sum."""

    names: tuple[str, ...]
    bound: float
    factor: Factor | None = None  # None leaves whole what lies within the bound
    count: Count | None = None


class ClippingRule(Protocol):
    """What one example's gradient is scaled by. The bound always has the last word."""

    def groups(self, names: Sequence[str]) -> list[Group]:
        """The groups of these parameters for the batch that begins, each parameter in one of them.

        Raises:
            ValueError: the rule does not fit the parameters.
        """
        ...


def factors_within(groups: Sequence[Group], norms: Tensor) -> Tensor:
    """What to multiply each gradient with: norms (groups, b) -> factors (groups, b).

    Guarantee: factor times norm is at most the group's bound; the factor is not a number where the norm is not finite.
    Source: Lee & Kifer 2020, eq. 2.
    """
    slack = _SLACK.get(norms.dtype, _SLACK_LOW_PRECISION)
    precise = norms if norms.dtype is torch.float64 else norms.float()
    factors = precise.new_tensor([[group.bound * (1 - slack)] for group in groups]) / precise
    for factor, group, row in zip(factors.unbind(), groups, precise.unbind(), strict=True):
        factor.clamp_(max=1 if group.factor is None else group.factor(row).detach().to(row).clamp(min=0))
    return factors.masked_fill_(~(precise < math.inf), math.nan).to(norms.dtype)


@dataclass(frozen=True)
class FlatClipping:
    """One norm over all trainable parameters, and one bound: factor min(1, C / norm).

    Args:
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C.
    Source: Abadi et al. 2016, algorithm 1.

    >>> [(group.names, group.bound) for group in FlatClipping(1.0).groups(["w", "b"])]
    [(('w', 'b'), 1.0)]
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm))]


@dataclass(frozen=True)
class PerLayerClipping:
    """A norm for the parameters of each module, each clipped to C / sqrt(K) where there are K modules.

    Args:
        max_grad_norm: the bound C of all layers together.

    Guarantee: one example moves the sum of each layer by at most C / sqrt(K), and so all of them by at most C.
    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", section 2.3.

    >>> names = ["0.weight", "0.bias", "2.weight", "scale", "4.weight"]
    >>> [(group.names, group.bound) for group in PerLayerClipping(3.0).groups(names)]
    [(('0.weight', '0.bias'), 1.5), (('2.weight',), 1.5), (('scale',), 1.5), (('4.weight',), 1.5)]
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)

    def groups(self, names: Sequence[str]) -> list[Group]:
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        bound = self.max_grad_norm / math.sqrt(len(layers))
        return [Group(tuple(layer), bound) for layer in layers.values()]


@dataclass(frozen=True)
class GroupwiseClipping:
    """A norm and a bound of its own for each group of parameters.

    Args:
        bounds: the bound of each group by the name of a module (or of a parameter); the group holds all parameters
            under that name. Every trainable parameter belongs to exactly one group.

    Guarantee: one example moves the sum of each group by at most its bound.
    Source: Abadi et al. 2016, section 4 (a norm for each layer).

    >>> rule = GroupwiseClipping({"body": 1.0, "head": 0.1})
    >>> [(group.names, group.bound) for group in rule.groups(["body.0.weight", "body.1.weight", "head.bias"])]
    [(('body.0.weight', 'body.1.weight'), 1.0), (('head.bias',), 0.1)]
    """

    bounds: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", dict(self.bounds))
        checks.all_of(
            *(lambda name=name, bound=bound: checks.positive(**{name: bound}) for name, bound in self.bounds.items())
        )

    def groups(self, names: Sequence[str]) -> list[Group]:
        held = {prefix: tuple(name for name in names if _lies_under(name, prefix)) for prefix in self.bounds}
        problems = [f"{prefix!r} names no trainable parameter" for prefix, group in held.items() if not group]
        for name in names:
            prefixes = [repr(prefix) for prefix, group in held.items() if name in group]
            if len(prefixes) != 1:
                problems.append(f"{name} is in {' and '.join(prefixes) or 'no group'}")
        if problems:
            raise ValueError(
                "GroupwiseClipping needs every trainable parameter in exactly one group:\n  " + "\n  ".join(problems)
            )
        return [Group(held[prefix], float(bound)) for prefix, bound in self.bounds.items()]


def _lies_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@dataclass(frozen=True)
class AutomaticClipping:
    """Every gradient is brought near the bound, small ones too: factor C / (norm + stability).

    The learning rate then need not be tuned with C.

    Args:
        max_grad_norm: the bound C.
        stability: keeps small gradients smaller than large ones.

    Guarantee: one example moves the sum by at most C.
    Source: Bu et al. 2022, "Automatic Clipping", AUTO-S.

    >>> [group] = AutomaticClipping(1.0).groups(["w"])
    >>> [round(factor, 4) for factor in group.factor(torch.tensor([0.0, 0.01, 1.99])).tolist()]
    [100.0, 50.0, 0.5]
    """

    max_grad_norm: float
    stability: float = 0.01

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm, stability=self.stability)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm), self._factor)]

    def _factor(self, norms: Tensor) -> Tensor:
        return self.max_grad_norm / (norms + self.stability)


# Norms that a factor is tried on: zero, and 1e-12 to 1e12.
_GRID = (0.0, *(10.0 ** (k / 10) for k in range(-120, 121)))


@dataclass(frozen=True)
class CustomClipping:
    """A factor of your own, a function of the norm.

    It is tried on norms from 1e-12 to 1e12 and zero when the rule is made, and held to min(factor, C / norm) always.

    Args:
        factor: norms of shape (b,) to factors of shape (b,): finite, not negative, each from its own norm alone, and
            at most C / norm.
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C, whatever the function returns, provided that it looks at one
    norm at a time.

    Raises:
        ValueError: the function returned something else; the message says at which norm.

    >>> rule = CustomClipping(lambda norms: 0.5 / (1 + norms), max_grad_norm=1.0)
    >>> CustomClipping(lambda norms: 1 / (norms - 3), max_grad_norm=1.0)
    Traceback (most recent call last):
      ...
    ValueError: the factor at norm 0 is -0.333333: expected a finite number that is not negative
    """

    factor: Factor
    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)
        norms = torch.tensor(_GRID, dtype=torch.float64)
        factors = self._checked(norms)
        for norm, factor in zip(_GRID, factors.tolist(), strict=True):
            if not 0 <= factor < math.inf:
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g}: expected a finite number that is not negative"
                )
            if factor * norm > self.max_grad_norm * (1 + _SLACK[torch.float32]):
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g}, which leaves a norm of {factor * norm:g}, above "
                    f"max_grad_norm={self.max_grad_norm:g}"
                )
        alone = torch.cat([self._checked(norm) for norm in norms.split(1)])
        for norm, one, factor in zip(_GRID, alone.tolist(), factors.tolist(), strict=True):
            if not math.isclose(one, factor, rel_tol=1e-6):
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g} among other norms and {one:g} alone: it must look at "
                    "one norm at a time"
                )

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm), self._checked)]

    def _checked(self, norms: Tensor) -> Tensor:
        """The factors, which no memory of the norms is left in.

        Raises:
            ValueError: not a tensor with one factor for each norm.
        """
        factors = self.factor(norms.clone())
        if not isinstance(factors, Tensor) or factors.shape != norms.shape:
            given = tuple(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
            raise ValueError(f"the factor returned {given} for norms of shape {tuple(norms.shape)}: give one for each")
        return factors.detach()
