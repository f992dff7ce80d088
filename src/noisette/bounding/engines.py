"""Engines of per-example clipping: the same clipped sum at different cost in time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from noisette.bounding.example_gradients import example_gradients
from noisette.rules import ExampleGradients
from noisette.tape import Record

Sums = dict[str, Tensor]
Factors = Callable[[Tensor], Tensor]  # norms (b,) -> the factor on each example's gradient (b,)


class Engine(Protocol):
    """A way to the clipped sum of a vector of losses."""

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], factors: Factors) -> Sums:
        """Sum of factor times gradient over the examples, for each parameter the losses depend on.

        Guarantee: an example whose gradient norm is not finite contributes exactly nothing.
        """
        ...


class BookKeeping:
    """One backward pass over activations, then norms and the clipped sum from what it left behind.

    Source: Bu et al. 2022 (book-keeping); norms as in Lee & Kifer 2020, section 5.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], factors: Factors) -> Sums:
        with _hooks_off(parameters.values()):
            forms = example_gradients(losses, record, parameters)
        return _weighted_sums(forms, factors(_norms(forms, losses)))


class Reweight:
    """A first backward pass for the norms, a second one of the re-weighted losses for the sum: less memory, more time.

    Source: Lee & Kifer 2020, algorithm 1 and eq. 3.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], factors: Factors) -> Sums:
        with _hooks_off(parameters.values()):
            forms = example_gradients(losses, record, parameters, retain_graph=True)
        weights = factors(_norms(forms, losses))
        low_precision = any(use.dtype.itemsize < 4 for use in record.uses)
        if not forms or low_precision or not weights.isfinite().all():
            # A second pass would round to other gradients than those measured, and no zero stops an infinity.
            return _weighted_sums(forms, weights)
        names = list(forms)
        with _hooks_off(parameters.values()):
            sums = torch.autograd.grad(losses, [parameters[name] for name in names], grad_outputs=weights)
        if len({g.data_ptr() for g in sums}) < len(sums):
            sums = [g.clone() for g in sums]  # autograd hands out one tensor for parameters of equal gradient
        return dict(zip(names, sums, strict=True))


class Loop:
    """One backward pass for every example. Slow, in need of no rule, and the reference for the other engines.

    A batch in which some gradient is not finite goes through `BookKeeping`, which needs rules.
    """

    def clipped_sum(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], factors: Factors) -> Sums:
        names, params = list(parameters), list(parameters.values())
        total: Sums = {}
        for loss in losses.unbind():
            with _hooks_off(params):
                gradients = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            used = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
            if not used:
                continue
            norm = torch.stack([torch.linalg.vector_norm(g) for g in used.values()]).norm()
            factor = factors(norm.unsqueeze(0))[0]
            if not factor.isfinite():
                # Zero times an infinite activation of one example spoils the gradients of all; rules keep them apart.
                return BookKeeping().clipped_sum(losses, record, parameters, factors)
            for name, g in used.items():
                clipped = g * factor
                total[name] = total[name] + clipped if name in total else clipped
        return total


def _norms(forms: Mapping[str, ExampleGradients], losses: Tensor) -> Tensor:
    """Norm of each example's whole gradient, shape (b,)."""
    if not forms:
        return losses.new_zeros(losses.shape[0])
    with torch.no_grad():
        return torch.stack([form.squared_norms() for form in forms.values()]).sum(0).sqrt()


def _weighted_sums(forms: Mapping[str, ExampleGradients], weights: Tensor) -> Sums:
    """Weighted sum of each parameter; an example without a finite weight is cut out, never multiplied by zero."""
    with torch.no_grad():
        finite = weights.isfinite()
        if not finite.all():
            kept = finite.nonzero().flatten()
            forms = {name: form.select(kept) for name, form in forms.items()}
            weights = weights[kept]
        return {name: form.weighted_sum(weights) for name, form in forms.items()}


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
