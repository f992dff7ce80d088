"""Checks of a model and an optimizer before a run: no normalisation over the batch, and the parameters of the bound."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from noisette.core.release import GradientBound
from noisette.core.steps import held_by
from noisette.errors import PrivacyError


def batch_mixing_modules(model: nn.Module) -> list[str]:
    """One line for each module that is known to mix examples: its name, its class, and what to do instead."""
    return [
        f"{name or 'the model itself'}  {type(module).__name__} {problem}"
        for name, module in model.named_modules()
        if (problem := _mixing(module))
    ]


def _mixing(module: nn.Module) -> str:
    """How the module mixes examples, or an empty string; modules may state it in an attribute ``mixes_examples``."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes examples: put GroupNorm or PublicBatchNorm in its place, as noisette.nn.convert_batch_norm(model, "
            "to=torch.nn.GroupNorm) does, or call .eval() on it"
        )
    if (
        isinstance(module, nn.modules.instancenorm._InstanceNorm)
        and module.training
        and module.running_mean is not None
    ):
        return (
            "mixes examples in its running statistics: build it with track_running_stats=False, or call .eval() on it"
        )
    return getattr(module, "mixes_examples", "")


def check_no_batch_norm(model: nn.Module) -> None:
    """No module of the model normalises over the batch.

    Raises:
        PrivacyError: listing every module that does.
    """
    if problems := batch_mixing_modules(model):
        raise PrivacyError(f"{len(problems)} modules of the model mix examples:\n  " + "\n  ".join(problems))


def check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer can be used in a private run with this bound.

    Raises:
        PrivacyError: the optimizer needs a closure or calls no hooks, or its parameters are not those of the bound.
    """
    if "_optimizer_step_pre_hooks" not in vars(optimizer) or not getattr(type(optimizer).step, "hooked", False):
        raise PrivacyError(
            f"step() of this {type(optimizer).__name__} calls no step hooks, so nothing would be released before it: "
            "give privatize the optimizer that it wraps, and step the wrapper; or let its class call "
            "torch.optim.Optimizer.__init__"
        )
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
    problems = [
        f"{name}: trainable, but not in the optimizer"
        for name, p in bound.parameters.items()
        if id(p) not in held and p.requires_grad
    ]
    outside = len(trainable - covered.keys())
    if outside:
        problems.append(f"{outside} trainable parameters of the optimizer are not in the model of the bound")
    if problems:
        raise PrivacyError(
            "the optimizer and the bound have different parameters:\n  " + "\n  ".join(problems) + "\n"
            "Freeze the parameters that are not trained (requires_grad=False) before you create the bound, and give "
            "the optimizer all others."
        )
