"""Operations that ``vmap`` lacks, by operations that it has: each function computes one as for one example.

``int()`` and ``bool()`` of a tensor ask for its value, and examples that give different answers are computed apart.
So masks and packed sequences, whose results differ in size from example to example, become selections of one size.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms, vmap
from torch.nn.utils import parametrize, rnn

from noisette.core.forms import rewrite
from noisette.core.vmap import REPLACED, add_example_axis, is_batched, level_of, physical, transformed

F = torch.nn.functional
_SET = parametrize._maybe_set
_VF: Any = rnn._VF  # operations of torch without a public name  # pyright: ignore[reportPrivateImportUsage]


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.dim() > 0 and is_batched(index)


def _by_numbers(index: object) -> Any:
    """An index with numbers in the place of masks; ``NotImplemented`` for one without masks of an example."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_mask, parts)):
        return NotImplemented
    return tuple([each for part in parts for each in (nonzero(part, as_tuple=True) if _is_mask(part) else (part,))])


@rewrite(Tensor.__getitem__, always=True)
def select(tensor: Tensor, index: object) -> Any:
    """``tensor[mask]``."""
    numbers = _by_numbers(index)
    return numbers if numbers is NotImplemented else tensor[numbers]


@rewrite(Tensor.__setitem__, always=True)
def write_selected(target: Tensor, index: Any, value: Any) -> Any:
    """``target[mask] = value``, where one value or row is written in each place, or as many as there are places."""
    axes = value.dim() if isinstance(value, Tensor) else 0
    is_mask = isinstance(index, Tensor) and index.dtype is torch.bool and target.shape[: index.dim()] == index.shape
    if is_mask and axes <= target.dim() - index.dim():
        wide = index.reshape(*index.shape, *[1] * (target.dim() - index.dim()))
        target.copy_(torch.where(wide, value, target))
        return None
    numbers = _by_numbers(index)
    return numbers if numbers is NotImplemented else target.__setitem__(numbers, value)


@rewrite(torch.masked_select, Tensor.masked_select, always=True)
def masked_select(input: Tensor, mask: Tensor) -> Any:
    """The values of the input where the mask is true, in the shape that both have together."""
    wide, selected = torch.broadcast_tensors(input, mask)
    return wide[selected] if _is_mask(selected) else NotImplemented


@rewrite(torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, always=True)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The places of an example's numbers that are not zero, in their order: (places, axes)."""
    if not is_batched(input) or not input.dim():
        return NotImplemented
    found = input.flatten() != 0
    first = found.int().argsort(descending=True, stable=True)[: int(found.sum())]
    places = torch.unravel_index(first, input.shape)
    return places if as_tuple else torch.stack(places, -1)


rewrite(torch.where, always=True)(  # given nothing to choose from
    lambda condition, input=None, other=None: nonzero(condition, as_tuple=True) if input is None else NotImplemented
)


@rewrite(torch.unique_consecutive, Tensor.unique_consecutive, always=True)
def unique_consecutive(values: Tensor, **options: Any) -> Any:
    """Of equal values one after the other, the first."""
    if not is_batched(values) or any(option not in (None, False) for option in options.values()):
        return NotImplemented
    flat = values.flatten()
    return flat[torch.cat([flat.new_ones(flat[:1].shape, dtype=torch.bool), flat[1:] != flat[:-1]])]


@rewrite(Tensor.data.__get__, always=True)  # pyright: ignore[reportAttributeAccessIssue]
def data(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, in its memory, into which code may write without autograd's knowledge."""
    with torch._C.DisableTorchFunction():
        return add_example_axis(physical(tensor).data, 0, level_of(tensor))


# A packed sequence of one example holds its first elements, one after the other, and a batch size of 1 for each.


@rewrite(_VF._pack_padded_sequence, always=True)
def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """The elements of a sequence up to its length."""
    axis = 0 if batch_first else 1
    if input.shape[axis] != 1 or not (is_batched(input) or is_batched(lengths)):
        return NotImplemented
    length = int(lengths.reshape(()))
    if not 0 < length <= input.shape[1 - axis]:
        raise ValueError("the length of a packed sequence is zero, or more than it has elements")
    return input.select(axis, 0)[:length], torch.ones(length, dtype=torch.int64)


@rewrite(_VF._pad_packed_sequence, always=True)
def pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int) -> Any:
    """The elements with padding behind them, and their number."""
    if not is_batched(data):
        return NotImplemented
    length = len(batch_sizes)
    missing = max(total_length, length) - length
    padded = F.pad(data, [0, 0] * (data.dim() - 1) + [0, missing], value=padding_value)
    return padded.unsqueeze(0 if batch_first else 1), torch.tensor([length])


# Functions of torch that are not operations, and what stands in their place while a loss runs


def _branch(is_first: Any, first: Callable[..., Any], second: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """``torch.cond``."""
    return (first if is_first else second)(*operands)


def _set(target: Tensor, source: Tensor) -> None:
    """The write by which a parametrization begins, mostly into itself; PEFT's begin in each forward pass."""
    if target is not source:
        _SET(target, source)


def _wrapped(wrap: Callable[..., Any], value: Any, *place: int, **level: int) -> Any:
    """An argument of a function that is called by ``torch.func.grad`` or ``torch.func.vmap``."""
    return wrap(transformed(value) if isinstance(value, Tensor) else value, *place, **level)


REPLACED += [(torch, "cond", _branch), (parametrize, "_maybe_set", _set)]
for module, name in ((eager_transforms, "_wrap_tensor_for_grad"), (vmap, "_add_batch_dim")):
    REPLACED.append((module, name, partial(_wrapped, getattr(module, name))))


# What asks for a value, or gives something other than a tensor of each example


def _are_all(compare: Any, input: Tensor, other: Tensor, **tolerances: Any) -> bool:
    """Whether all numbers of two tensors compare as true."""
    return input.shape == other.shape and bool(compare(input, other, **tolerances).all())


rewrite(torch.equal, Tensor.equal, always=True)(partial(_are_all, torch.eq))
rewrite(torch.allclose, Tensor.allclose, always=True)(partial(_are_all, torch.isclose))
rewrite(torch.narrow, Tensor.narrow, always=True)(  # torch 2.14 lacks it where the beginning is in a tensor
    lambda input, dim, start, length: (
        input.narrow(dim, int(start), length) if isinstance(start, Tensor) else NotImplemented
    )
)
# Whether arguments are valid, as of a distribution: no branch may depend on it.
rewrite(torch._is_all_true, Tensor._is_all_true, always=True)(lambda input: torch.ones((), dtype=torch.bool))  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
rewrite(Tensor.__iter__, always=True)(lambda tensor: iter(tensor.unbind(0)))
rewrite(Tensor.retain_grad, always=True)(lambda tensor: None)  # nobody sees the gradient of an activation
rewrite(Tensor.__repr__, Tensor.__format__, always=True)(  # numbers in a text could come back as numbers
    lambda x, *_, tensor_contents=None: f"tensor of shape {tuple(x.shape)} for each example"
)


@rewrite(Tensor.new, always=True)
def new(tensor: Tensor, *sizes: Any) -> Any:
    """A tensor of this shape, not yet filled."""
    if not all(isinstance(size, int | tuple) for size in sizes):
        return NotImplemented
    return torch.empty(*sizes, dtype=tensor.dtype, device=tensor.device)


@rewrite(torch.broadcast_tensors, always=True)
def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common shape; ``vmap`` leaves a constant among them unwrapped."""
    shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])
    return tuple([tensor.expand(shape) for tensor in tensors])
