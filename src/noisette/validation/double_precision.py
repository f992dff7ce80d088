"""A model computed in double precision, in which a difference is coupling and not rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

_LOWER = {torch.float32, torch.float16, torch.bfloat16}
_CASTS = {Tensor.float, Tensor.half, Tensor.bfloat16}
# The default type is that of all threads: two that set and restore it in turn would leave it in double precision.
_ONE_AT_A_TIME = threading.RLock()


def to_double(tensor: Tensor) -> Tensor:
    """The tensor in double precision if it is floating-point, otherwise unchanged."""
    return tensor.double() if tensor.is_floating_point() else tensor


class _NoLowerPrecision(TorchFunctionMode):
    """Casts to lower precisions, such as in a softmax that asks for single precision, are casts to double."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _CASTS:
            return args[0].double()
        args = tuple([torch.float64 if isinstance(value, torch.dtype) and value in _LOWER else value for value in args])
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in _LOWER:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def in_double(model: nn.Module) -> Iterator[None]:
    """Parameters, buffers and new tensors are in double precision; at the end the original tensors are put back."""
    buffers = [(part, name, b) for part in model.modules() for name, b in part._buffers.items() if b is not None]
    with ExitStack() as originals:
        originals.enter_context(_ONE_AT_A_TIME)
        originals.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        originals.callback(parametrize._cache.clear)  # weights cached in double precision
        parametrize._cache.clear()
        for device in {tensor.device.type for tensor in model.parameters()}:
            originals.enter_context(torch.autocast(device, enabled=False))
        for p in model.parameters():
            originals.callback(setattr, p, "data", p.data)
            p.data = to_double(p.data)
        for part, name, value in buffers:
            originals.callback(part._buffers.__setitem__, name, value)
            part._buffers[name] = to_double(value)
        originals.enter_context(_NoLowerPrecision())
        yield


@contextmanager
def weights_drawn_anew(model: nn.Module, factor: float) -> Iterator[None]:
    """Trainable weights are changed at random by ``factor`` times their size, so that none is zero; then put back."""
    with ExitStack() as originals:
        for p in model.parameters():
            if p.requires_grad and p.is_floating_point() and p.numel():
                originals.callback(setattr, p, "data", p.data)
                size = p.data.square().mean().sqrt()
                size = torch.where((size > 0) & size.isfinite(), size, torch.full_like(size, 0.1))
                p.data = p.data + factor * size * torch.randn(p.shape, device=p.device).to(p.dtype)
        yield
