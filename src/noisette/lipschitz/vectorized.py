"""The losses of a batch from the loss of one example, by ``torch.func.vmap``: examples cannot mix in it.

Inside of ``vmap`` a tensor stands for one example. Behind it is a *physical* tensor with one more axis, on which the
examples lie. Private names of functorch are used in this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim
from torch.utils._pytree import tree_flatten, tree_unflatten

from noisette.errors import PrivacyError

ExampleLoss = Callable[..., Tensor]  # of the model and the arguments of one example, with a batch axis of length 1


def vectorized_losses(loss: ExampleLoss, model: nn.Module, batch: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """The losses of a batch, shape (b,), each computed from its own example alone.

    Args:
        loss: see ``ExampleLoss``; its value is a scalar, or a vector of one.
        model: its first argument.
        batch: its further arguments: trees of tensors whose first axis holds the examples, and of constants.
        named: its named arguments, as ``batch``.

    Raises:
        ValueError: the arguments hold no tensor, or tensors of different lengths.
        PrivacyError: the loss is not one number.
    """
    leaves, structure = tree_flatten((tuple(batch), dict(named)))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    lengths = {leaves[k].shape[0] if leaves[k].dim() else None for k in places}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            "expected tensors whose first axis holds the examples of the microbatch, all of one length, got shapes "
            f"{[tuple(leaves[k].shape) for k in places]}"
        )

    def of_one(*rows: Tensor) -> Tensor:
        own = list(leaves)
        for k, row in zip(places, rows, strict=True):
            own[k] = row.unsqueeze(0)
        args, kwargs = tree_unflatten(own, structure)
        return _one_number(loss(model, *args, **kwargs))

    if lengths == {0}:
        return torch.zeros(0)
    return torch.func.vmap(of_one, randomness="different")(*(leaves[k] for k in places))


def _one_number(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"expected the loss of one example, a scalar or a vector of one, got {shape}")
    return value.sum()


def example_axis(tensor: Tensor) -> int | None:
    """The axis of the physical tensor on which the examples lie; ``None`` if ``vmap`` does not see them in it."""
    return maybe_get_bdim(tensor) if is_batchedtensor(tensor) else None


def physical(tensor: Tensor) -> Tensor:
    """The tensor behind a tensor of ``vmap``; any other tensor is itself.

    Raises:
        PrivacyError: the tensor is inside of a ``vmap`` of the user's own, too.
    """
    if not is_batchedtensor(tensor):
        return tensor
    outer = get_unwrapped(tensor)
    if is_batchedtensor(outer):
        raise PrivacyError("the model was called inside of another vmap; call it with one example, outside of it")
    return outer
