"""Calls of the model within a loss: what they leave for the backward pass, and what runs in them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from noisette.core import loss as vmap
from noisette.errors import PrivacyError
from noisette.lipschitz.torch_modules import check_measured_shape, is_measured

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class ModelCall:
    """The scores of one call of the model for all examples, (b, 1, ...), twice.

    The loss is computed from ``leaf``, which has the numbers of ``scores`` and no graph. So the backward pass of the
    loss ends at the scores, and that of the model begins at them, with a gradient of bounded norm.
    """

    scores: Tensor
    leaf: Tensor


@contextmanager
def recorded_calls(model: nn.Module, shape: tuple[int, ...]) -> Iterator[list[ModelCall]]:
    """Within it every call of the model with gradients enabled adds to the list, and no hook of the user runs.

    Bounds are about what modules compute, and a hook may change that. A warning names the modules that have some.
    Afterwards the hooks are there again, and the model has none of ours.

    Args:
        model: the model, called inside of ``vmap`` with one example.
        shape: declared shape of one example at its input.

    Raises:
        PrivacyError: (in a call) it is not one that the bounds are about.
    """
    calls: list[ModelCall] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        with torch._C.DisableTorchFunction():  # what is recorded here is no operation of the loss
            _check_precision(output)
            _check_shapes(shape, [*args, *kwargs.values()], output)
            level = _level_of(output)
            with vmap.outside():
                scores = vmap.physical(output)
                if not scores.requires_grad:
                    raise PrivacyError("the scores depend on no trainable parameter: unfreeze one (requires_grad_())")
                call = ModelCall(scores, scores.detach().requires_grad_())
        calls.append(call)
        return vmap.batched(call.leaf, level).clone()  # which the loss may write into

    if hooked := [name or "the model itself" for name, module in model.named_modules() if any(_hooks_of(module))]:
        warnings.warn(
            f"hooks of {', '.join(hooked)} do not run in accumulate, because bounds are about modules alone. What a "
            "hook changes belongs in a module with bounds or in the loss; to log values, call the model yourself",
            stacklevel=5,  # where accumulate is called
        )
    found = [(hooks, dict(hooks)) for hooks in _hooks(model) if hooks]
    for hooks, _ in found:
        hooks.clear()
    measured = [module for module in model.modules() if is_measured(module)]
    handles = [module.register_forward_hook(check_measured_shape) for module in measured]
    handles.append(model.register_forward_hook(record, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for hooks, kept in found:
            hooks.update(kept)


def gradient_at_scores(losses: Tensor, calls: list[ModelCall], parameters: Mapping[str, Tensor]) -> Tensor:
    """The gradient of each example's loss with respect to the scores of the last call, (b, 1, ...).

    Raises:
        PrivacyError: the losses depend on no call, on several, or on a parameter otherwise than through the scores.
    """
    if not calls:
        raise PrivacyError(
            "the losses do not come from a call of the model: call it in the loss, with gradients enabled"
        )
    if not losses.requires_grad:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
    sources = [*parameters.values(), *(call.leaf for call in calls)]
    gradients = torch.autograd.grad(losses.sum(), sources, allow_unused=True)
    *others, last = gradients[len(parameters) :]
    reached = [name for name, g in zip(parameters, gradients, strict=False) if g is not None]
    if reached or any(g is not None for g in others):
        what = ", ".join(reached) if reached else f"the scores of {len(calls)} calls of the model"
        raise PrivacyError(
            f"the losses depend on {what} other than through the scores of the model's last call: compute them only "
            "from these scores; put penalties on the weights into the optimizer (weight_decay)"
        )
    if last is None:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
    return last


def _hooks(model: nn.Module) -> Iterator[MutableMapping[int, Any]]:
    """The tables of all hooks that a call of the model passes."""
    yield from (getattr(torch_module, "_global" + kind) for kind in _KINDS)
    for module in model.modules():
        yield from _hooks_of(module)


def _hooks_of(module: nn.Module) -> list[MutableMapping[int, Any]]:
    return [getattr(module, kind) for kind in _KINDS]


def _check_precision(output: Any) -> None:
    if not isinstance(output, Tensor):
        raise PrivacyError(f"the model must return one tensor of scores, got {type(output).__name__}")
    if torch.is_autocast_enabled(output.device.type):
        raise PrivacyError("rounding under autocast exceeds the slack of the bounds; call the model outside of it")
    if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        raise PrivacyError(
            "rounding in TF32 exceeds the slack of the bounds; set torch.backends.cuda.matmul.allow_tf32 = False"
        )


def _check_shapes(shape: tuple[int, ...], arguments: list[Any], scores: Tensor) -> None:
    """Check that the first tensor of a call and its scores have the shapes of one example that the bounds assume."""
    found = next((leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)), None)
    if found is None or found.dim() == 0 or tuple(found.shape[1:]) != shape:
        got = "no tensor" if found is None else f"an input of shape {tuple(found.shape)}"
        raise PrivacyError(
            f"the bounds are those of examples of shape {shape} (input_shape), but the model got {got}: expected "
            f"(1, {', '.join(map(str, shape))}). Resize or pad the examples, or declare the larger shape"
        )
    if found.shape[0] != 1:
        raise PrivacyError(
            f"the model was called with {found.shape[0]} rows for one example, but its bounds are those of one row: "
            "call it with a batch axis of length 1"
        )
    if scores.dim() == 0 or scores.shape[0] != 1:
        raise PrivacyError(f"the model must return one row of scores for an example, got shape {tuple(scores.shape)}")


def _level_of(scores: Tensor) -> int:
    """The level of ``vmap`` at which the scores are those of all examples."""
    if not vmap.is_wrapped(scores):
        raise PrivacyError("the scores do not depend on the example: call the model with the loss's own arguments")
    if not vmap.is_batched(scores) or vmap.is_wrapped(vmap.physical(scores)):
        raise PrivacyError(
            "the model was called inside of another vmap or another transformation of torch.func; call it with one "
            "example, outside of it"
        )
    return vmap.level_of(scores)
