"""Gradient norms, the clipping factor, and the clipped sum.

For an example with gradient norm n and clipping norm C the factor is min(1, C / n): a gradient of norm 5 and C = 1 is
multiplied with 0.2, one of norm 0.5 stays as it is. The computation is in :func:`clipping_factors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from noisette.gradients.per_example import LocatedRecording, PerExampleGradients
from noisette.gradients.rules import ExampleGradients
from noisette.gradients.rules.forms import weighted_sums

Factor = Callable[[Tensor], Tensor]  # norms (b,) -> factors (b,), each computed from its own norm alone
Sums = dict[str, Tensor]  # by name of the parameter

_SLACK = {torch.float64: 1e-12, torch.float32: 1e-6}
_SLACK_LOW_PRECISION = 1e-2


def slack_of(dtype: torch.dtype) -> float:
    """Norms carry rounding errors; clipping to this part less than C keeps the true norm within C."""
    return _SLACK.get(dtype, _SLACK_LOW_PRECISION)


@dataclass(frozen=True)
class Count:
    """A count of the examples within their clipping norm: a sum of its own, released beside the gradient.

    Each example adds +1/2 or -1/2, so one example moves the sum by 1/2.
    """

    released: Tensor  # its ``.grad`` will hold the noised count over the expected batch size
    share: float  # of the release's budget


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together, and the most one example can move their sum."""

    names: tuple[str, ...]
    bound: float
    factor: Factor | None = None  # None: the factor is 1 for gradients within the bound
    count: Count | None = None


class ClippingRule(Protocol):
    """Chooses the factor that each example's gradient is multiplied with; no factor exceeds bound / norm."""

    def groups(self, names: Sequence[str]) -> list[Group]:
        """The groups of these parameters for the next batch, each parameter in one of them.

        Raises:
            ValueError: the rule does not fit the parameters.
        """
        ...


@runtime_checkable
class AdaptiveRule(Protocol):
    """A clipping rule whose bound follows the released count of the examples within it."""

    def adapt(self, released_count: Tensor) -> None:
        """Choose the bound of the next batch, given the noised count over the expected batch size.

        The same tensor may come again; it counts once.
        """
        ...


@dataclass(frozen=True)
class Clipping:
    """Which parameters an engine clips together, and by which factors."""

    groups: Sequence[Sequence[str]]  # names of parameters; each parameter in one group
    factors: Callable[[Tensor], Tensor]  # norms (groups, b) -> factors (groups, b), not finite where a norm is not


@dataclass(frozen=True)
class ClippedSum:
    """Sum of factor times gradient for each parameter the losses depend on, and the norms it was clipped by."""

    sums: Sums
    norms: Tensor  # (groups, b)


class Engine(Protocol):
    """A way to compute the clipped sum of a vector of losses."""

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        """Sum of factor times gradient over the examples.

        Guarantee: an example whose gradient norm is not finite contributes exactly nothing.
        """
        ...


def group_norms(squared: Mapping[str, Tensor], groups: Sequence[Sequence[str]], losses: Tensor) -> Tensor:
    """The norm of each example's gradient in each group, shape (groups, b).

    Args:
        squared: squared norms by name of the parameter, each (b,); a parameter without gradient is left out.
        groups: the names of the parameters of each group.
        losses: one value per example, for shape and dtype.
    """
    group = group_of(groups)
    parts: list[list[Tensor]] = [[] for _ in groups]
    for name, of_parameter in squared.items():
        parts[group[name]].append(of_parameter)
    with torch.no_grad():
        nothing = losses.new_zeros(losses.shape[0])
        return torch.stack([torch.stack(part).sum(0) if part else nothing for part in parts]).sqrt_()


def clipping_factors(groups: Sequence[Group], norms: Tensor) -> Tensor:
    """What each gradient is multiplied with: norms (groups, b) -> factors (groups, b).

    Guarantee: factor times norm is at most the group's bound; the factor is not a number where the norm is not finite.
    Source: Lee & Kifer 2020, eq. 2.
    """
    slack = slack_of(norms.dtype)
    precise = norms if norms.dtype is torch.float64 else norms.float()
    factors = precise.new_tensor([[group.bound * (1 - slack)] for group in groups]) / precise
    for factor, group, row in zip(factors.unbind(), groups, precise.unbind(), strict=True):
        factor.clamp_(max=1 if group.factor is None else group.factor(row).detach().to(row).clamp(min=0))
    return factors.masked_fill_(~(precise < math.inf), math.nan).to(norms.dtype)


def clip_and_sum(found: PerExampleGradients, losses: Tensor, clipping: Clipping) -> ClippedSum:
    """The clipped sum of per-example gradients; ``found.forms`` is used up."""
    norms = group_norms(found.squared_norms, clipping.groups, losses)
    return ClippedSum(_weighted_sums(found.forms, clipping.groups, clipping.factors(norms)), norms)


def _weighted_sums(forms: dict[str, ExampleGradients], groups: Sequence[Sequence[str]], weights: Tensor) -> Sums:
    """Weighted sum of each parameter; an example without a finite weight is removed, never multiplied by zero."""
    group = group_of(groups)
    with torch.no_grad():
        kept = None
        if not math.isfinite(weights.sum()):
            kept = weights.isfinite().all(0).nonzero().flatten()
            weights = weights[:, kept]
        rows = weights.unbind()
        return weighted_sums(forms, {name: rows[group[name]] for name in forms}, kept)


def group_of(groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of each parameter's group."""
    return {name: k for k, names in enumerate(groups) for name in names}
