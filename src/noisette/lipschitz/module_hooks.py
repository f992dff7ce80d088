"""Hooks that others have registered on a model: whether there are any, and a context in which none of them runs.

The bounds of a network are about its modules, so a hook that scales an activation or a gradient would break them. Most
hooks only look, to print or record, and must not be refused. So where there are hooks, the gradient is computed from a
second call in which they do not run.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL = tuple("_global" + kind for kind in _OF_MODULES)

Hooks = MutableMapping[int, Any]


def has_foreign_hooks(model: nn.Module) -> bool:
    """Whether a hook that is not the library's runs in a call of the model or in its backward pass.

    Pre-hooks of the model itself do not count: they change its input, and the bounds hold for every input.
    """
    first = model._forward_pre_hooks
    if _changes_saved_tensors():
        return True
    found = (hook for hooks in _hooks(model) if hooks and hooks is not first for hook in hooks.values())
    return any(not str(getattr(hook, "__module__", "")).startswith("noisette.") for hook in found)


@contextmanager
def module_hooks_disabled(model: nn.Module) -> Iterator[None]:
    """Within it no hook runs in a call of the model or of its modules, nor in the backward pass of such a call."""
    held = [(hooks, dict(hooks)) for hooks in _hooks(model) if hooks]
    for hooks, _ in held:
        hooks.clear()
    try:
        with _saved_as_they_are():
            yield
    finally:
        for hooks, kept in held:
            hooks.update(kept)


def _changes_saved_tensors() -> bool:
    """Whether the call is inside of ``torch.autograd.graph.saved_tensors_hooks``, such as ``save_on_cpu``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # pyright: ignore[reportAttributeAccessIssue]


def _saved_as_they_are() -> AbstractContextManager[object]:
    if not _changes_saved_tensors():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def _hooks(model: nn.Module) -> Iterator[Hooks]:
    """The tables of all hooks that a call of the model passes, those of all modules first."""
    for name in _GLOBAL:
        yield getattr(torch_module, name)
    for module in model.modules():
        for name in _OF_MODULES:
            yield getattr(module, name)


class RandomState:
    """The state of torch's generators before a call, so that a second call draws the same numbers."""

    def __init__(self, model: nn.Module) -> None:
        self._devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
        self._states: list[Tensor] = [torch.get_rng_state(), *(torch.cuda.get_rng_state(k) for k in self._devices)]

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Within it numbers are drawn from this state; afterwards from where the generators were before."""
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._devices, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
