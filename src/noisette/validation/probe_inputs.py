"""Calls of a model, and public inputs of the same shapes, of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from noisette.core.trees import leaves, map_leaves, tensors

EXAMPLES = 8  # in a public batch
SEED = 20160721


@dataclass(frozen=True)
class Kind:
    """How public inputs are drawn; a model whose rules do not allow one kind is checked with the others.

    Args:
        name: in a few words.
        floating: tensors of this shape.
        whole: whole numbers of this shape from the lowest to the highest, which are 0 and 1 unless an example says more
            (they are valid in every vocabulary, mask and list of classes).
        of_example: the rows of the user's public example, again and again, instead of drawn ones.
        varied: each number of the example is changed within the example's range.
    """

    name: str
    floating: Callable[[Sequence[int]], Tensor]
    whole: Callable[[int, int, Sequence[int]], Tensor]
    of_example: bool = False
    varied: bool = False


def _random_whole(low: int, high: int, shape: Sequence[int]) -> Tensor:
    return torch.randint(low, high + 1, tuple(shape))


def _highest(low: int, high: int, shape: Sequence[int]) -> Tensor:
    return torch.full(tuple(shape), high)


def _lowest(low: int, high: int, shape: Sequence[int]) -> Tensor:
    return torch.full(tuple(shape), low)


def _above_the_lowest(low: int, high: int, shape: Sequence[int]) -> Tensor:
    """From 1 to 2 unless an example says more: lengths, which are not zero."""
    return torch.randint(low + 1, high + 1 + (high == 1), tuple(shape)) if high > low else _highest(low, high, shape)


NORMAL = Kind("normal", torch.randn, _random_whole)
RANDOM_KINDS = (
    NORMAL,
    Kind("uniform in [0, 1)", torch.rand, _highest),
    Kind("positive", lambda shape: torch.randn(shape).exp(), _lowest),
    Kind("whole numbers", lambda shape: torch.randint(0, 10, tuple(shape)).float(), _above_the_lowest),
)
EXAMPLE_KINDS = (
    Kind("the example, varied", torch.rand, _random_whole, of_example=True, varied=True),
    Kind("the example", torch.rand, _random_whole, of_example=True),
)
_VARIED = 0.3  # part of the whole numbers that are drawn anew


@dataclass(frozen=True)
class Call:
    """Positional and keyword arguments of one call of a module.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        public: the user's own public inputs, if there are any; their values are used.
        kinds: the kinds of public inputs that the model takes, the first of which every check uses.
        lists_are_rows: whether a list of as many numbers as there are examples has one for each of them.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    public: Call | None = None
    kinds: tuple[Kind, ...] = (NORMAL,)
    lists_are_rows: bool = True

    @property
    def values(self) -> list[Any]:
        """Every argument that is no container; a list of numbers with one for each example is one value."""
        return leaves((self.args, dict(self.kwargs)), self._is_rows)

    @property
    def examples(self) -> int:
        """The number of examples, read from the first tensor; 0 without tensors."""
        for leaf in leaves((self.args, dict(self.kwargs)), lambda value: isinstance(value, PackedSequence)):
            if isinstance(leaf, PackedSequence):
                return int(leaf.batch_sizes[0])
            if isinstance(leaf, Tensor):
                return leaf.shape[0] if leaf.dim() else 0
        return 0

    def _is_rows(self, value: Any) -> bool:
        """Whether the value is no tensor and yet has one entry for each example: packed, or a list of numbers."""
        if isinstance(value, PackedSequence):
            return True
        numbers = type(value) in (list, tuple) and value and all(type(entry) in (int, float) for entry in value)
        return bool(numbers) and self.lists_are_rows and len(value) == self.examples

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every tensor."""

        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        args, kwargs = map_leaves(changed, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every value that has the examples on its first axis."""
        b = self.examples

        def changed(value: Any) -> Any:
            if isinstance(value, PackedSequence):
                padded, lengths = pad_packed_sequence(value, batch_first=True)
                return pack_padded_sequence(change(padded), change(lengths), batch_first=True, enforce_sorted=False)
            if type(value) in (list, tuple) and self._is_rows(value):
                return type(value)(change(torch.tensor(value)).tolist())
            return change(value) if isinstance(value, Tensor) and value.dim() and value.shape[0] == b else value

        args, kwargs = map_leaves(changed, (self.args, dict(self.kwargs)), self._is_rows)
        return replace(self, args=args, kwargs=kwargs)

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments."""
        return tensors((self.args, dict(self.kwargs)))

    def fits(self, other: Call) -> bool:
        """Whether the other call has arguments of the same types, numbers of axes and plain values."""
        return list(map(_described, self.values)) == list(map(_described, other.values)) and _keys(self) == _keys(other)


def _keys(call: Call) -> tuple[int, list[str]]:
    return len(call.args), sorted(call.kwargs)


def _described(value: Any) -> object:
    """What must agree for two calls to be of one form: not sizes, not values of tensors."""
    if isinstance(value, Tensor):
        return value.dim(), value.is_floating_point() or value.is_complex()
    return type(value) if isinstance(value, PackedSequence | list | tuple) else repr(value)


def of_the_form(public: object, call: Call) -> Call | None:
    """The user's public inputs as a call like this one; ``None`` if they have another form.

    ``public`` is a tensor, a tuple of positional arguments, whose last entry may be a mapping of keyword arguments, or
    a mapping. Tensors of one record may lack the batch axis.
    """
    forms = [Call((public,), {})]
    if isinstance(public, Mapping):
        forms.append(Call((), {str(name): value for name, value in public.items()}))
    if isinstance(public, tuple):
        forms.append(Call(public, {}))
        if public and isinstance(public[-1], Mapping):
            forms.append(Call(public[:-1], dict(public[-1])))
    device = next((tensor.device for tensor in call.tensors()), torch.device("cpu"))
    for form in (*forms, *(form.map(lambda tensor: tensor.unsqueeze(0)) for form in forms)):
        if form.fits(call):
            return form.map(lambda tensor: tensor.to(device))
    return None


def public_batch(example: Call, examples: int = EXAMPLES, kind: Kind | None = None) -> Call:
    """Public inputs with the shapes and types of the example, and ``examples`` entries on the batch axis.

    They are of the first kind that the model takes unless another one is given.
    """
    kind = kind if kind is not None else example.kinds[0]
    if example.public is not None and kind.of_example:
        return _rows_of_example(example.public, examples, kind)
    ranges = _ranges(example)
    b = example.examples

    def public(tensor: Tensor, low: int, high: int) -> Tensor:
        batched = tensor.dim() and tensor.shape[0] == b
        shape = (examples if batched else tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else ()
        if tensor.is_floating_point() or tensor.is_complex():
            return kind.floating(shape).to(tensor)
        return kind.whole(low, high, shape).to(tensor)

    def changed(value: Any) -> Any:
        low, high = next(ranges)
        if isinstance(value, Tensor):
            return public(value, low, high)
        if isinstance(value, PackedSequence):
            return _packed(value, kind, examples)
        if isinstance(value, list | tuple):  # one number for each example, in the order that packing asks for
            return type(value)(sorted((value * examples)[:examples], reverse=True))
        return value

    with torch._C.DisableTorchFunction():  # also inside a mode such as DisableRandomness
        args, kwargs = map_leaves(changed, (example.args, dict(example.kwargs)), example._is_rows)
    return replace(example, args=args, kwargs=kwargs)


def _rows_of_example(public: Call, examples: int, kind: Kind) -> Call:
    """The rows of the user's public example, repeated, each of another size or with other whole numbers if varied."""

    def varied(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor * (0.5 + 0.5 * kind.floating(tensor.shape).to(tensor))
        if tensor.dtype is torch.bool or not tensor.numel():
            return tensor
        drawn = kind.whole(int(tensor.min()), int(tensor.max()), tensor.shape).to(tensor)
        return torch.where(torch.rand(tensor.shape).to(tensor.device) < _VARIED, drawn, tensor)

    with torch._C.DisableTorchFunction():
        order = torch.arange(examples) % max(public.examples, 1)
        repeated = public.map_rows(lambda tensor: tensor[order.to(tensor.device)])
        return repeated.map(varied) if kind.varied else repeated


def _ranges(example: Call) -> Iterator[tuple[int, int]]:
    """The lowest and highest whole number of each value: those of the user's example, otherwise 0 and 1."""
    values = example.public.values if example.public is not None else example.values
    for value in values:
        whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
        if example.public is not None and whole and value.numel() and value.dtype is not torch.bool:
            yield int(value.min()), int(value.max())
        else:
            yield 0, 1


def _packed(value: PackedSequence, kind: Kind, examples: int) -> PackedSequence:
    """Sequences of this kind, as many as there are examples and as long as the longest, some of them shorter."""
    longest = len(value.batch_sizes)
    padded = kind.floating((examples, longest, *value.data.shape[1:])).to(value.data)
    lengths = torch.tensor([longest - k % longest for k in range(examples)])
    return pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)


def map_batched(batch: Call, change: Callable[[Tensor], Tensor], examples: int = EXAMPLES) -> Call:
    """The batch with ``change`` applied to every value that has the examples on its first axis."""
    assert batch.examples in (examples, 0)
    return batch.map_rows(change)


def single_example(batch: Call, i: int) -> Call:
    """One example of the batch as a batch of one."""
    return batch.map_rows(lambda tensor: tensor[i : i + 1])


def first_examples(batch: Call, examples: int) -> Call:
    """The first examples of the batch."""
    return batch.map_rows(lambda tensor: tensor[:examples])


def output_tensors(output: object) -> list[Tensor]:
    """Every tensor of an output; packed sequences are padded, one row for each example."""
    found: list[Tensor] = []
    for leaf in leaves(output, lambda value: isinstance(value, PackedSequence)):
        if isinstance(leaf, PackedSequence):
            leaf = pad_packed_sequence(leaf, batch_first=True)[0]
        if isinstance(leaf, Tensor):
            found.append(leaf)
    return found


def by_example(values: object, b: int) -> tuple[Tensor, ...]:
    """Every tensor among these whose first axis is a multiple of b, reshaped to (b, n): one row for each example."""
    found = [tensor for tensor in output_tensors(values) if tensor.dim() and tensor.shape[0]]
    return tuple(tensor.detach().unflatten(0, (b, -1)) for tensor in found if tensor.shape[0] % b == 0)


def differ(one: Sequence[Tensor], other: Sequence[Tensor], tolerance: float = 1e-2) -> bool:
    """Whether tensors of the same shape differ by more than rounding, as a part of their size."""
    return any(
        not torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance / 100, equal_nan=True)
        for a, b in zip(one, other, strict=False)
        if a.shape == b.shape
    )


def finite(values: Iterable[Tensor]) -> bool:
    """Whether every number is finite."""
    return all(bool(value.isfinite().all()) for value in values)
