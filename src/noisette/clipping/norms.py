"""What engines of per-example clipping share: the request, the answer, and the way from gradients to a clipped sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from noisette.gradients.rules import ExampleGradients
from noisette.gradients.tape import Record

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Clipping:
    """Which parameters are clipped together, and how much."""

    groups: Sequence[Sequence[str]]  # names of parameters; each parameter in one group
    factors: Callable[[Tensor], Tensor]  # norms (groups, b) -> factors (groups, b), not finite where a norm is not


@dataclass(frozen=True)
class ClippedSum:
    """Sum of factor times gradient for each parameter the losses depend on, and the norms it was clipped by."""

    sums: Sums
    norms: Tensor  # (groups, b)


class Engine(Protocol):
    """A way to the clipped sum of a vector of losses."""

    def clipped_sum(
        self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        """Sum of factor times gradient over the examples.

        Guarantee: an example whose gradient norm is not finite contributes exactly nothing.
        """
        ...


class Norms:
    """Squared gradient norms of each group of parameters, one value per example."""

    def __init__(self, losses: Tensor, groups: Sequence[Sequence[str]]) -> None:
        self._nothing = losses.new_zeros(losses.shape[0])
        self._group_of = group_of(groups)
        self._squared: list[list[Tensor]] = [[] for _ in groups]
        self.seen: set[str] = set()

    def add(self, name: str, form: ExampleGradients) -> None:
        """Count in a parameter's per-example gradients."""
        self.seen.add(name)
        with torch.no_grad():
            self._squared[self._group_of[name]].append(form.squared_norms())

    def by_group(self) -> Tensor:
        """Norm of each example's gradient in each group, shape (groups, b)."""
        with torch.no_grad():
            sums = [torch.stack(parts).sum(0) if parts else self._nothing for parts in self._squared]
            return torch.stack(sums).sqrt_()


def clip_and_add(forms: dict[str, ExampleGradients], norms: Norms, clipping: Clipping) -> ClippedSum:
    """The clipped sum of per-example gradients whose norms are known; ``forms`` is used up."""
    found = norms.by_group()
    return ClippedSum(_weighted_sums(forms, clipping.groups, clipping.factors(found)), found)


def _weighted_sums(forms: dict[str, ExampleGradients], groups: Sequence[Sequence[str]], weights: Tensor) -> Sums:
    """Weighted sum of each parameter; an example without a finite weight is cut out, never multiplied by zero."""
    group = group_of(groups)
    with torch.no_grad():
        kept = None
        if not math.isfinite(weights.sum()):
            kept = weights.isfinite().all(0).nonzero().flatten()
            weights = weights[:, kept]
        rows = weights.unbind()
        sums: Sums = {}
        for name in list(forms):
            form = forms.pop(name)  # what it holds is let go before the next sum is made
            sums[name] = (form if kept is None else form.select(kept)).weighted_sum(rows[group[name]])
        return sums


def group_of(groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of each parameter's group."""
    return {name: k for k, names in enumerate(groups) for name in names}


@contextmanager
def hooks_off(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Gradient hooks of the user's see noised gradients, never these."""
    held = [(hooks, dict(hooks)) for p in parameters if (hooks := p._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in held:
            hooks.update(kept)
