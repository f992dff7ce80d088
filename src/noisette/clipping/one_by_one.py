"""The gradients of one example after the other, for a loss that ``torch.func.vmap`` cannot vectorise.

Each example is in a call of the loss alone, so code may branch on its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from noisette.core.backward import user_hooks_disabled
from noisette.core.clip import ClippedSum, Clipping, clipped_in_parts
from noisette.core.forms import Operation
from noisette.core.loss import Loss, Microbatch, as_if_compiled, one_value
from noisette.core.state import ModelBuffers
from noisette.core.trace import CALL, OF_A_CONSTANT, kept_from_another_call, outputs_of, tensors_among


class OneByOneWarning(UserWarning):
    """The loss cannot be vectorised; its examples are computed one after the other, with the same result."""


def says_one_by_one(cause: str) -> str:
    """The warning, given why the loss cannot be vectorised."""
    return (
        f"{cause} Each example is therefore computed in a call of its own: the sum is the same, and takes as long as "
        "so many microbatches of one example."
    )


def clipped_sum_one_by_one(
    loss: Loss,
    model: nn.Module,
    batch: Microbatch,
    parameters: Mapping[str, Tensor],
    buffers: ModelBuffers,
    clipping: Clipping,
) -> ClippedSum:
    """The clipped sum of a microbatch, by one call of the loss for each example.

    Args:
        loss: the loss of one example.
        model: given to the loss, with copies of its buffers that are dropped after each example.
        batch: the arguments of b examples.
        parameters: those that are trained, by name.
        buffers: of the model.
        clipping: how gradients are clipped.

    Raises:
        PrivacyError: the loss is not one value, or uses a tensor that was computed from another example.
    """
    parts = (_loss_and_gradients(loss, model, batch.of_row(k), parameters, buffers) for k in range(batch.count))
    return clipped_in_parts(parts, clipping)


def _loss_and_gradients(
    loss: Loss, model: nn.Module, one: Microbatch, parameters: Mapping[str, Tensor], buffers: ModelBuffers
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one example, (1,), and its gradients, (1, *parameter.shape), by name."""
    with torch.enable_grad(), as_if_compiled(), buffers.lent(), _OneExample(one.tensors):
        value = one_value(loss(model, *one.args, **one.kwargs))
    if not value.requires_grad:
        return value.detach().reshape(1), {}
    with user_hooks_disabled(parameters.values()):
        found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    dense = [g if g is None or g.layout is torch.strided else g.to_dense() for g in found]
    gradients = {name: g.unsqueeze(0) for name, g in zip(parameters, dense, strict=True) if g is not None}
    return value.detach().reshape(1), gradients


class _OneExample(TorchFunctionMode):
    """Marks what is computed from an example, and refuses what was computed from another one."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._call = object()
        for tensor in tensors:
            setattr(tensor, CALL, self._call)

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_of_example = False
        for tensor in tensors_among(args[:1], {}) if func in OF_A_CONSTANT else tensors_among(args, kwargs):
            if (call := getattr(tensor, CALL, None)) is not None:
                if call is not self._call:
                    raise kept_from_another_call(tensor)
                is_of_example = True
        output = func(*args, **kwargs)
        if is_of_example:
            for tensor in outputs_of(output):
                setattr(tensor, CALL, self._call)
        return output
