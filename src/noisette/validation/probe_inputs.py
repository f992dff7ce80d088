"""Calls of a model, and public random inputs of the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

EXAMPLES = 8  # in a public batch
SEED = 20160721


@dataclass(frozen=True)
class Call:
    """Positional and keyword arguments of one call of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every tensor."""
        args, kwargs = tree_map(lambda v: change(v) if isinstance(v, Tensor) else v, (self.args, dict(self.kwargs)))
        return Call(args, kwargs)

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments."""
        return [leaf for leaf in tree_flatten((self.args, dict(self.kwargs)))[0] if isinstance(leaf, Tensor)]


def public_batch(example: Call, examples: int = EXAMPLES) -> Call:
    """Random inputs with the shapes and types of the example, and ``examples`` entries on the batch axis."""
    tensors = example.tensors()
    b = tensors[0].shape[0] if tensors and tensors[0].dim() else 0

    def public(tensor: Tensor) -> Tensor:
        batched = tensor.dim() and tensor.shape[0] == b
        shape = (examples if batched else tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else tensor.shape
        with torch._C.DisableTorchFunction():  # also inside a mode such as DisableRandomness
            if tensor.dtype.is_floating_point:
                return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
            # Zero and one are valid in every vocabulary, mask and list of classes.
            return torch.randint(0, 2, shape, device=tensor.device).to(tensor.dtype)

    return example.map(public)


def map_batched(batch: Call, change: Callable[[Tensor], Tensor], examples: int = EXAMPLES) -> Call:
    """The batch with ``change`` applied to every tensor that has the examples on its first axis."""
    return batch.map(lambda tensor: change(tensor) if tensor.dim() and tensor.shape[0] == examples else tensor)


def single_example(batch: Call, i: int) -> Call:
    """One example of the batch as a batch of one."""
    return map_batched(batch, lambda tensor: tensor[i : i + 1])


def by_example(values: object, b: int) -> tuple[Tensor, ...]:
    """Every tensor among these whose first axis is a multiple of b, reshaped to (b, n): one row for each example."""
    leaves = [leaf for leaf in tree_flatten(as_dict(values))[0] if isinstance(leaf, Tensor) and leaf.dim()]
    return tuple(leaf.detach().unflatten(0, (b, -1)) for leaf in leaves if leaf.shape[0] and leaf.shape[0] % b == 0)


def to_double(tensor: Tensor) -> Tensor:
    """The tensor in double precision if it is floating-point, otherwise unchanged."""
    return tensor.double() if tensor.is_floating_point() else tensor


@contextmanager
def in_double(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers in double precision; at the end the original tensors are put back."""
    buffers = [(part, name, b) for part in model.modules() for name, b in part._buffers.items() if b is not None]
    with ExitStack() as originals:
        for p in model.parameters():
            originals.callback(setattr, p, "data", p.data)
            p.data = to_double(p.data)
        for part, name, value in buffers:
            originals.callback(part._buffers.__setitem__, name, value)
            part._buffers[name] = to_double(value)
        yield


def differ(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors of the same shape differ by more than rounding."""
    return any(
        a.shape == b.shape and not torch.allclose(a.double(), b.double(), rtol=1e-2, atol=1e-4, equal_nan=True)
        for a, b in zip(one, other, strict=False)
    )


def as_dict(output: object) -> object:
    """Output classes that are mappings, as a ``dict``, which pytrees understand."""
    return dict(output) if isinstance(output, Mapping) else output
