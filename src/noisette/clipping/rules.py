"""Clipping rules: how the norm of an example's gradient becomes its clipping factor."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisette import errors as checks
from noisette.core.clip import SMALLEST_BOUND, Count, Group

__all__ = ["AdaptiveClip", "AutomaticClipping", "FlatClipping", "GroupwiseClipping", "PerLayerClipping"]


@dataclass(frozen=True)
class _OfOneNorm:
    """A rule that is made from its bound alone."""

    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)


@dataclass(frozen=True)
class FlatClipping(_OfOneNorm):
    """One norm over all trainable parameters, and one bound: factor min(1, C / norm).

    Args:
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C.
    Source: Abadi et al. 2016, algorithm 1.

    >>> [(group.names, group.bound) for group in FlatClipping(1.0).groups(["w", "b"])]
    [(('w', 'b'), 1.0)]
    """

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm))]


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
        checks.positive(**self.bounds)

    def groups(self, names: Sequence[str]) -> list[Group]:
        held = {prefix: tuple(name for name in names if f"{name}.".startswith(f"{prefix}.")) for prefix in self.bounds}
        problems = [f"{prefix!r} names no trainable parameter" for prefix, group in held.items() if not group]
        for name in names:
            prefixes = [repr(prefix) for prefix, group in held.items() if name in group]
            if len(prefixes) != 1:
                problems.append(f"{name} is in {' and '.join(prefixes) or 'no group'}")
        if problems:
            listed = "\n  ".join(problems)
            raise ValueError(f"GroupwiseClipping needs every trainable parameter in exactly one group:\n  {listed}")
        return [Group(held[prefix], float(bound)) for prefix, bound in self.bounds.items()]


@dataclass(frozen=True)
class PerLayerClipping(_OfOneNorm):
    """A norm for the parameters of each module, each clipped to C / sqrt(K) where there are K modules.

    Args:
        max_grad_norm: the bound C of all layers together.

    Guarantee: one example moves the sum of each layer by at most C / sqrt(K), and so all of them by at most C.
    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", section 2.3.

    >>> names = ["0.weight", "0.bias", "2.weight", "scale", "4.weight"]
    >>> [(group.names, group.bound) for group in PerLayerClipping(3.0).groups(names)]
    [(('0.weight', '0.bias'), 1.5), (('2.weight',), 1.5), (('scale',), 1.5), (('4.weight',), 1.5)]
    """

    def groups(self, names: Sequence[str]) -> list[Group]:
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        bound = self.max_grad_norm / math.sqrt(len(layers))
        return [Group(tuple(layer), bound) for layer in layers.values()]


STABILITY = 0.01  # keeps small gradients smaller than large ones


@dataclass(frozen=True)
class AutomaticClipping(_OfOneNorm):
    """Scale every gradient, small ones too, to nearly the clipping norm C: factor C / (norm + 0.01).

    The learning rate then need not be tuned together with C.

    Args:
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C.
    Source: Bu et al. 2022, "Automatic Clipping", AUTO-S.

    >>> [group] = AutomaticClipping(1.0).groups(["w"])
    >>> [round(factor, 4) for factor in group.factor(torch.tensor([0.0, 0.01, 1.99])).tolist()]
    [100.0, 50.0, 0.5]
    """

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm), self._factor)]

    def _factor(self, norms: Tensor) -> Tensor:
        return self.max_grad_norm / (norms + STABILITY)


# C stays within this range of its first value. Where all gradients vanish C falls in every step, and the noise with it:
# without a floor it would leave the range of single precision, in which norms and noise are zero.
_RANGE = (1e-6, 1e6)


class AdaptiveClip:
    """One norm over all trainable parameters, clipped to a bound C that follows a quantile of the norms.

    After each step C becomes C exp(-learning_rate (b - target_quantile)), where b is the noised fraction of examples
    whose norm is at most C. The count shares the gradient's release, at no further privacy cost; in exchange the
    gradient gets 1 / sqrt(1 - count_share) times the noise. C stays within a factor of a million of its first value.

    Args:
        initial_norm: the bound C of the first step.
        target_quantile: the fraction of the examples whose norm should be at most C, in (0, 1).
        learning_rate: how fast C moves.
        count_share: the share of the release's budget that goes to the count, in (0, 1).

    Attributes:
        max_grad_norm: the bound C as of the last release. It is public.

    Guarantee: in every step one example moves the sum by at most that step's C, which depends on released values alone.
    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", algorithm 1.

    >>> AdaptiveClip(0.1).max_grad_norm
    0.1
    """

    def __init__(
        self, initial_norm: float, target_quantile: float = 0.5, learning_rate: float = 0.2, count_share: float = 0.01
    ) -> None:
        checks.positive(initial_norm=initial_norm, learning_rate=learning_rate)
        checks.open_fraction(target_quantile=target_quantile, count_share=count_share)
        self.target_quantile = float(target_quantile)
        self.learning_rate = float(learning_rate)
        self.count_share = float(count_share)
        self.max_grad_norm = float(initial_norm)
        self._lowest = max(SMALLEST_BOUND, _RANGE[0] * self.max_grad_norm)
        self._highest = _RANGE[1] * self.max_grad_norm
        self._count = Count(torch.zeros((), dtype=torch.float64), self.count_share)
        self._adapted_to: Tensor | None = None

    def adapt(self, released_count: Tensor) -> None:
        """Move C by the released count of a step, over the expected batch size; the same tensor moves it only once."""
        if released_count is self._adapted_to:
            return
        self._adapted_to = released_count
        within = float(released_count) + 0.5  # examples count +1/2 or -1/2, which puts the fraction one half too low
        moved = self.max_grad_norm * math.exp(-self.learning_rate * (within - self.target_quantile))
        self.max_grad_norm = min(max(moved, self._lowest), self._highest)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), self.max_grad_norm, count=self._count)]

    def state(self) -> Mapping[str, float]:
        return {"max_grad_norm": self.max_grad_norm}

    def restore(self, state: Mapping[str, float]) -> None:
        checks.positive(max_grad_norm=state["max_grad_norm"])
        self.max_grad_norm = float(state["max_grad_norm"])
        self._adapted_to = self._count.released.grad  # the restored C includes it
