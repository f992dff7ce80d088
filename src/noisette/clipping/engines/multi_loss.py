"""The engine that stacks the gradients of all examples before it clips them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.clipping.engines.linearity import adds_to_zero
from noisette.clipping.engines.per_example_loop import by_rules_or_vmap, one_by_one
from noisette.core.backward import LocatedRecording, PerExampleGradients
from noisette.core.clip import ClippedSum, Clipping, clip_and_sum


class MultiLoss:
    """One backward pass for every example, stacked to (b, *parameter.shape), then clipped and added up at once.

    Needs no rule, and the memory of all per-example gradients. A batch in which some gradient is not finite goes
    through rules, or through `Vmap` where one is missing; so does one whose hooks add to the gradients of others.

    Source: Lee & Kifer 2020 (multiLoss).
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        if adds_to_zero(forward, parameters):
            return by_rules_or_vmap(forward, parameters, clipping)
        found = PerExampleGradients.dense(_stacked(forward.losses, parameters))
        if not all(squared.isfinite().all() for squared in found.squared_norms.values()):
            return by_rules_or_vmap(forward, parameters, clipping)
        return clip_and_sum(found, forward.losses, clipping)


def _stacked(losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of all examples, each (b, *parameter.shape), of the parameters that some loss depends on."""
    gradients = list(one_by_one(losses, parameters))
    names = dict.fromkeys(name for of_example in gradients for name in of_example)
    return {
        name: torch.stack([of_example.get(name, torch.zeros_like(parameters[name])) for of_example in gradients])
        for name in names
    }
