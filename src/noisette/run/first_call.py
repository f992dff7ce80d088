"""The checks of a model, run before its first call with gradients and whenever the calls change."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

import torch
from torch import Tensor, nn

from noisette.clipping.per_example import PerExampleClip
from noisette.core.release import GradientBound
from noisette.core.vmap import current_level
from noisette.validation import Call, checks
from noisette.validation.checked_calls import FUNCTIONS, MOST_ENTRIES, PLAIN, CheckedCalls


class ValidateOnFirstCall:
    """A forward pre-hook that runs the checks before a call with gradients that was not checked before.

    So they run in the first call, and again when modes, modules, arguments or plain attributes of the model have
    changed: after ``model.train()`` a batch norm mixes examples that did not do so in evaluation mode. A copy of the
    model is not checked. ``example`` are the user's own public inputs.
    """

    def __init__(self, bound: GradientBound | None, example: object = None) -> None:
        self._bound = bound
        self._example = example
        self._checked = CheckedCalls()
        self._checking = False
        self._mark: list[Any] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> ValidateOnFirstCall:
        return ValidateOnFirstCall(None)

    def __reduce__(self) -> tuple[type[ValidateOnFirstCall], tuple[None]]:
        return ValidateOnFirstCall, (None,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = self._bound
        if bound is None or module is not bound.model or not torch.is_grad_enabled() or self._checking:
            return
        alone = isinstance(bound, PerExampleClip) and bound.sees_examples_alone
        if alone or current_level() is not None:  # a vectorised loss needs no check
            return
        mark = _plain_mark(module, args, kwargs)
        if mark is not None and mark == self._mark:
            return
        self._mark = mark
        call = Call(args, kwargs)
        covered, size = self._checked.covers(module, call), self._checked.larger_size(call)
        self._checking = True
        try:
            if not covered:
                checks.prove(bound, call, self._example)
            if size is not None:
                checks.prove_size(bound, call, self._example, size)
        except BaseException:
            self._checked.forget()
            self._mark = None
            raise
        finally:
            self._checking = False


def _plain_mark(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """What is equal in two calls of which one check is enough, in one pass; ``None`` if an argument is a container."""
    values = [*args, *kwargs.values()]
    if not all(isinstance(value, Tensor) or type(value) in PLAIN for value in values):
        return None
    mark: list[Any] = [list(kwargs)]
    mark += [(v.dtype, v.shape) if isinstance(v, Tensor) else v for v in values]
    for part in model.modules():
        mark += [id(part), id(type(part)), id(getattr_static(type(part), "forward", None))]
        mark += map(id, part._forward_pre_hooks.values())
        mark += map(id, part._forward_hooks.values())
        for name, value in vars(part).items():
            if type(value) in PLAIN:
                mark += [name, value]
            elif type(value) in FUNCTIONS:
                mark += [name, id(value)]
            elif type(value) in (list, tuple):
                mark += [name, str(value) if len(value) <= MOST_ENTRIES else len(value)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.numel() == 1:
                mark += [name, buffer.item() if buffer.device.type == "cpu" else buffer._version]
    return mark
