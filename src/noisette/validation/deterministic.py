"""Random operations replaced by constants, so that a model gives the same output for an example in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_F = torch.nn.functional
_DROPOUT = {
    _F.dropout, _F.dropout1d, _F.dropout2d, _F.dropout3d, _F.alpha_dropout, _F.feature_alpha_dropout,
    torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_CONSTANT = {torch.rand: 0.5, torch.rand_like: 0.5, torch.randn: 0.0, torch.randn_like: 0.0}


class DisableRandomness(TorchFunctionMode):
    """Random operations return constants, so that an example is treated alike alone and in a batch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if func is _F.scaled_dot_product_attention:
            return func(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **(kwargs | _no_dropout(kwargs)))
        output = func(*args, **kwargs)
        if func in _CONSTANT:
            return output.fill_(_CONSTANT[func])
        if func in (torch.bernoulli, Tensor.bernoulli):
            return (args[0] >= 0.5).to(output.dtype)
        if func is Tensor.bernoulli_:
            return output.fill_(1.0)
        if func is Tensor.normal_:
            return output.fill_(0.0)
        return output


def _no_dropout(kwargs: Mapping[str, Any]) -> dict[str, float]:
    return {"dropout_p": 0.0} if "dropout_p" in kwargs else {}


@contextmanager
def randomness_disabled_in_recomputation(model: nn.Module) -> Iterator[None]:
    """Disable randomness in submodules that activation checkpointing calls again in the backward pass.

    A :class:`DisableRandomness` around the backward pass does not apply there, because autograd runs it outside of the
    mode; hooks enter the mode in each submodule instead.
    """
    active: list[DisableRandomness] = []

    def enter(module: nn.Module, args: Any) -> None:
        active.append(DisableRandomness())
        active[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        active.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for module in list(model.modules())[1:]:
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield
