"""The reference engine: one backward pass for every example, through the graph of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from noisette.clipping.engines.linearity import adds_to_zero
from noisette.clipping.engines.vmap import Vmap
from noisette.core.backward import LocatedRecording, per_example_gradients, user_hooks_disabled
from noisette.core.clip import ClippedSum, Clipping, Sums, clip_and_sum, group_norms, group_of
from noisette.core.forms import AT_LEAST_SINGLE, Dense
from noisette.errors import PrivacyError


class PerExampleLoop:
    """One backward pass for every example, clipped and added up one after the other. Needs no rule; slow.

    A batch in which some gradient is not finite goes through rules, or through `Vmap` where one is missing; so does one
    whose hooks add to the gradients of other examples.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        if adds_to_zero(forward, parameters):
            return by_rules_or_vmap(forward, parameters, clipping)
        group = group_of(clipping.groups)
        total: Sums = {}
        norms: list[Tensor] = []
        for gradients in one_by_one(forward.losses, parameters):
            squared = {name: Dense(g.unsqueeze(0)).squared_norms() for name, g in gradients.items()}
            norms.append(group_norms(squared, clipping.groups, forward.losses[:1]))
            factors = clipping.factors(norms[-1])
            if not factors.isfinite().all():
                return by_rules_or_vmap(forward, parameters, clipping)
            for name, g in gradients.items():
                clipped = g.to(AT_LEAST_SINGLE.get(g.dtype, g.dtype)) * factors[group[name], 0]
                total[name] = total[name].add_(clipped) if name in total else clipped.double()
        return ClippedSum(total, torch.cat(norms, 1))


def one_by_one(losses: Tensor, parameters: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Each example's gradient of the parameters that its loss depends on."""
    params = list(parameters.values())
    for loss in losses.unbind():
        with user_hooks_disabled(params):
            gradients = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        yield {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}


def by_rules_or_vmap(forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
    """The sum without the examples that are not finite.

    In one graph for all examples, zero times an infinite activation of one example is not a number in the gradients of
    all others. Rules and single calls keep the examples apart.
    """
    try:
        found = per_example_gradients(forward, parameters, keep=True, retain_graph=True)
        return clip_and_sum(found, forward.losses, clipping)
    except PrivacyError:
        return Vmap().clipped_sum(forward, parameters, clipping)
