"""Whether an optimizer moves what the bound covers, all of it and nothing else."""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer

from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import GradientBound


def check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer can be used for a private run of this bound.

    Raises:
        PrivacyError: it needs a closure, or its parameters are not those of the bound.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyError("LBFGS needs a closure, which computes gradients that are not private; use SGD or Adam")
    check_coverage(optimizer, bound)


def check_coverage(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer moves the parameters that the bound covers, and no others that are trainable.

    Raises:
        PrivacyError: it does not; every problem is listed.
    """
    covered = {id(p): name for name, p in bound.parameters.items()}
    held = held_by(optimizer)
    if held == covered.keys():
        return
    trainable = {
        id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad or p.grad is not None
    }
    problems = [f"{name}: trainable, but not in the optimizer" for i, name in covered.items() if i not in held]
    outside = len(trainable - covered.keys())
    if outside:
        problems.append(f"{outside} trainable parameters of the optimizer are not in the model that is bounded")
    if problems:
        raise PrivacyError(
            "the optimizer and the bound differ:\n  " + "\n  ".join(problems) + "\n"
            "Freeze what is not trained (requires_grad=False) before PerExampleClip, and give the optimizer the rest."
        )


def held_by(optimizer: Optimizer) -> set[int]:
    """The ``id`` of every parameter that the optimizer moves."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
