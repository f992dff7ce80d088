"""Engines that take one backward pass for every example, through the graph of the whole batch. They need no rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from noisette.clipping.engines.book_keeping import by_rules
from noisette.clipping.engines.vmap import Vmap
from noisette.clipping.norms import ClippedSum, Clipping, Norms, Sums, clip_and_add, group_of, hooks_off
from noisette.errors import PrivacyError
from noisette.gradients.rules import Dense, ExampleGradients
from noisette.gradients.tape import Record


class PerExampleLoop:
    """One backward pass for every example, clipped and added up one after the other. Slow, and the reference.

    A batch in which some gradient is not finite goes through rules, or through `Vmap` where one is missing.
    """

    def clipped_sum(
        self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        group = group_of(clipping.groups)
        total: Sums = {}
        norms: list[Tensor] = []
        for used in _gradients(losses, parameters):
            squared = losses.new_zeros(len(clipping.groups), 1)
            for name, g in used.items():
                squared[group[name]] += torch.linalg.vector_norm(g).square()
            norms.append(squared.sqrt())
            factors = clipping.factors(norms[-1])
            if not factors.isfinite().all():
                return _apart(losses, record, parameters, clipping)
            for name, g in used.items():
                clipped = g * factors[group[name], 0]
                total[name] = total[name] + clipped if name in total else clipped
        return ClippedSum(total, torch.cat(norms, 1))


class MultiLoss:
    """One backward pass for every example, stacked to examples x parameters, then clipped and added up at once.

    Takes the memory of all per-example gradients. A batch in which some gradient is not finite goes through rules, or
    through `Vmap` where one is missing.

    Source: Lee & Kifer 2020 (multiLoss).
    """

    def clipped_sum(
        self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        gradients = list(_gradients(losses, parameters))
        names = dict.fromkeys(name for used in gradients for name in used)
        norms = Norms(losses, clipping.groups)
        forms: dict[str, ExampleGradients] = {}
        for name in names:
            rows = [used[name] if name in used else torch.zeros_like(parameters[name]) for used in gradients]
            forms[name] = Dense(torch.stack(rows))
            norms.add(name, forms[name])
        if not norms.by_group().isfinite().all():
            return _apart(losses, record, parameters, clipping)
        return clip_and_add(forms, norms, clipping)


def _gradients(losses: Tensor, parameters: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Each example's gradient of the parameters that its loss depends on."""
    params = list(parameters.values())
    for loss in losses.unbind():
        with hooks_off(params):
            gradients = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        yield {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}


def _apart(losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
    """Zero times an infinite activation of one example spoils the gradients of all; rules and calls keep them apart."""
    again = record.copy()
    try:
        return by_rules(losses, record, parameters, clipping, retain_graph=True)
    except PrivacyError:
        return Vmap().clipped_sum(losses, again, parameters, clipping)
