"""A check that an optimizer updates exactly the parameters that the bound covers."""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer

from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import GradientBound


def check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer can be used in a private run with this bound.

    Raises:
        PrivacyError: the optimizer needs a closure, or its parameters are not those of the bound.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyError("LBFGS needs a closure, which computes gradients that are not private; use SGD or Adam")
    check_coverage(optimizer, bound)


def check_coverage(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer has the parameters that the bound covers, and no other trainable ones.

    Raises:
        PrivacyError: listing the parameters that differ.
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
        problems.append(f"{outside} trainable parameters of the optimizer are not in the model of the bound")
    if problems:
        raise PrivacyError(
            "the optimizer and the bound have different parameters:\n  " + "\n  ".join(problems) + "\n"
            "Freeze the parameters that are not trained (requires_grad=False) before you create the bound, and give "
            "the optimizer all others."
        )


def held_by(optimizer: Optimizer) -> set[int]:
    """The ``id`` of every parameter of the optimizer."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
