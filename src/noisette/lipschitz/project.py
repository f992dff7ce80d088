"""The constraints of a model are put back in force: weights of equal shape are projected as one batch."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from noisette.lipschitz.protocols import Constrained, is_constrained


@torch.no_grad()
def project(model: nn.Module) -> None:
    """Bring every constrained parameter of the model back into its set, and certify it there.

    It reads released values alone, so it costs no privacy.

    Source: Bethune et al. 2024, algorithm 2, line "project".

    Raises:
        ValueError: a weight is not finite.
    """
    together: dict[object, list[Constrained]] = defaultdict(list)
    for module in model.modules():
        if is_constrained(module):
            stack = module.matrices()
            together[module.projection, stack.shape, stack.dtype, stack.device].append(module)
    for modules in together.values():
        stacks = [module.matrices() for module in modules]
        projected, norms = modules[0].projection(torch.cat(stacks))
        sizes = [len(stack) for stack in stacks]
        for module, stack, part, own in zip(modules, stacks, projected.split(sizes), norms.split(sizes), strict=True):
            stack.copy_(part)
            module.certified(own)
