"""Engines of per-example clipping: the same clipped sum at different cost in time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from noisette.bounding.example_gradients import example_gradients
from noisette.rules import ExampleGradients
from noisette.tape import Record

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Clipping:
    """Which parameters are clipped together, and how much."""

    groups: Sequence[Sequence[str]]  # names of parameters; each parameter in one group
    factors: Callable[[Tensor], Tensor]  # norms (groups, b) -> factors (groups, b), not finite where a norm is not


class Engine(Protocol):
    """A way to the clipped sum of a vector of losses."""

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping) -> Sums:
        """Sum of factor times gradient over the examples, for each parameter the losses depend on.

        Guarantee: an example whose gradient norm is not finite contributes exactly nothing.
        """
        ...


class BookKeeping:
    """One backward pass over activations, then norms and the clipped sum from what it left behind.

    Source: Bu et al. 2022 (book-keeping); norms as in Lee & Kifer 2020, section 5.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping) -> Sums:
        forms: dict[str, ExampleGradients] = {}
        norms = _Norms(losses, clipping.groups)

        def settle(name: str, form: ExampleGradients) -> None:
            norms.add(name, form)
            forms[name] = form

        with _hooks_off(parameters.values()):
            example_gradients(losses, record, parameters, settle)
        return _weighted_sums(forms, clipping.groups, clipping.factors(norms.by_group()))


class Reweight:
    """A first backward pass for the norms, a second one of the re-weighted losses for the sum: less memory, more time.

    With several clipping groups the second pass is taken once for each.

    Source: Lee & Kifer 2020, algorithm 1 and eq. 3.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping) -> Sums:
        if any(use.dtype.itemsize < 4 for use in record.uses):
            # A second pass would round to other gradients than those measured.
            return BookKeeping().clipped_sum(losses, record, parameters, clipping)
        norms = _Norms(losses, clipping.groups)
        again = record.copy()
        with _hooks_off(parameters.values()):
            example_gradients(losses, record, parameters, norms.add, retain_graph=True)
        weights = clipping.factors(norms.by_group())
        if not weights.isfinite().all():
            # No zero stops an infinity on its way through a second pass.
            return BookKeeping().clipped_sum(losses, again, parameters, clipping)
        groups = [[name for name in names if name in norms.seen] for names in clipping.groups]
        with _hooks_off(parameters.values()):
            return _second_passes(losses, parameters, groups, weights)


class Loop:
    """One backward pass for every example. Slow, in need of no rule, and the reference for the other engines.

    A batch in which some gradient is not finite goes through `BookKeeping`, which needs rules.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping) -> Sums:
        names, params = list(parameters), list(parameters.values())
        group_of = _group_of(clipping.groups)
        total: Sums = {}
        for loss in losses.unbind():
            with _hooks_off(params):
                gradients = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            used = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
            squared = losses.new_zeros(len(clipping.groups), 1)
            for name, g in used.items():
                squared[group_of[name]] += torch.linalg.vector_norm(g).square()
            factors = clipping.factors(squared.sqrt())
            if not factors.isfinite().all():
                # Zero times an infinite activation of one example spoils the gradients of all; rules keep them apart.
                return BookKeeping().clipped_sum(losses, record, parameters, clipping)
            for name, g in used.items():
                clipped = g * factors[group_of[name], 0]
                total[name] = total[name] + clipped if name in total else clipped
        return total


class _Norms:
    """Squared gradient norms of each group of parameters, one value per example."""

    def __init__(self, losses: Tensor, groups: Sequence[Sequence[str]]) -> None:
        self._nothing = losses.new_zeros(losses.shape[0])
        self._group_of = _group_of(groups)
        self._squared: list[list[Tensor]] = [[] for _ in groups]
        self.seen: set[str] = set()

    def add(self, name: str, form: ExampleGradients) -> None:
        self.seen.add(name)
        with torch.no_grad():
            self._squared[self._group_of[name]].append(form.squared_norms())

    def by_group(self) -> Tensor:
        """Norm of each example's gradient in each group, shape (groups, b)."""
        with torch.no_grad():
            sums = [torch.stack(parts).sum(0) if parts else self._nothing for parts in self._squared]
            return torch.stack(sums).sqrt()


def _group_of(groups: Sequence[Sequence[str]]) -> dict[str, int]:
    return {name: k for k, names in enumerate(groups) for name in names}


def _second_passes(
    losses: Tensor, parameters: Mapping[str, Tensor], groups: Sequence[Sequence[str]], weights: Tensor
) -> Sums:
    """The gradients of the weighted losses, one pass for each group that the losses depend on."""
    passes = [(names, row) for names, row in zip(groups, weights, strict=True) if names]
    sums: Sums = {}
    for k, (names, row) in enumerate(passes, start=1):
        gradients = torch.autograd.grad(
            losses, [parameters[name] for name in names], grad_outputs=row, retain_graph=k < len(passes)
        )
        if len({g.data_ptr() for g in gradients}) < len(gradients):
            gradients = [g.clone() for g in gradients]  # autograd hands out one tensor for parameters of equal gradient
        sums |= dict(zip(names, gradients, strict=True))
    return sums


def _weighted_sums(forms: dict[str, ExampleGradients], groups: Sequence[Sequence[str]], weights: Tensor) -> Sums:
    """Weighted sum of each parameter; an example without a finite weight is cut out, never multiplied by zero."""
    group_of = _group_of(groups)
    with torch.no_grad():
        finite = weights.isfinite().all(0)
        kept = None if finite.all() else finite.nonzero().flatten()
        if kept is not None:
            weights = weights[:, kept]
        sums: Sums = {}
        for name in list(forms):
            form = forms.pop(name)  # what it holds is let go before the next sum is made
            sums[name] = (form if kept is None else form.select(kept)).weighted_sum(weights[group_of[name]])
        return sums


@contextmanager
def _hooks_off(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Gradient hooks of the user's see noised gradients, never these."""
    held = [(hooks, dict(hooks)) for p in parameters if (hooks := p._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in held:
            hooks.update(kept)
