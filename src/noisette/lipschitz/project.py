"""Projection of all constrained parameters of a model; weights of equal shape are projected in one batch."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from noisette.lipschitz.protocols import Constrained, is_constrained


@torch.no_grad()
def project(model: nn.Module) -> None:
    """Project every constrained parameter of the model onto its set, and certify its norm there.

    Only released values are read, so this has no privacy cost.

    Source: Bethune et al. 2024, algorithm 2, line "project".

    Raises:
        ValueError: a weight is not finite.
    """
    batches: dict[object, list[Constrained]] = defaultdict(list)
    for module in model.modules():
        if is_constrained(module):
            stack = module.matrices()
            batches[module.projection, stack.shape, stack.dtype, stack.device].append(module)
    for modules in batches.values():
        stacks = [module.matrices() for module in modules]
        projected, norms = modules[0].projection(torch.cat(stacks))
        sizes = [len(stack) for stack in stacks]
        for module, stack, new, own in zip(modules, stacks, projected.split(sizes), norms.split(sizes), strict=True):
            stack.copy_(new)
            module.set_certified_norms(own)
