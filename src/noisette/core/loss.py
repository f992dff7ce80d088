"""The contract between your code and a private run, and the arguments of a loss for a microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Never, Protocol

from torch import Tensor, nn

from noisette.core.trees import leaves, map_leaves, tensors
from noisette.errors import PrivacyError


class Loss(Protocol):
    """The loss of one example: a function of its arguments, the model's weights and buffers, and torch's generators.

    It is called with one example, each tensor with a batch axis of length 1, and returns a tensor with one value. It
    may call any torch code. It keeps nothing between calls, and reads records only through its arguments. What a call
    writes into buffers of the model is dropped. Batches are pytrees of tensors. Release the ``state_dict`` of the
    model, not a pickle of the live objects.

    ========================  =========================================================================================
    By construction           no operation of torch sees two examples (``torch.func.vmap``); buffers carry nothing out
                              of a call; weights move by the release alone; random numbers of torch have a secret seed
                              within a batch; the ledger is written before noise is drawn
    Checked, with a remedy    batch norm in training mode; an argument that is no tensor and has entries of several
                              examples; buffers or weights that the loop writes between the first record of a batch and
                              its release; a tensor of examples that is kept for the next call; a new tensor from
                              outside in a step; numbers drawn from Python's or NumPy's global generator; gradients
                              that the run did not write; a closure; a second optimizer
    Yours                     what a data set does in ``__getitem__``; Python values taken out of records; state kept in
                              Python objects; generators of your own; what undoes ``vmap`` on purpose; the criterion
                              over a batch in loops written for Opacus
    ========================  =========================================================================================

    Guarantee: for a loss of this kind, adding or removing one record changes the sum of clipped gradients by at most
    the clipping norm, in real arithmetic. The operator is honest and can make mistakes; the attacker sees all that is
    released, and may know or forge all other records.
    """

    def __call__(self, model: nn.Module, /, *batch: Any, **keywords: Any) -> Tensor:
        """The loss of one example, a tensor with one value."""
        ...


@dataclass(frozen=True)
class Microbatch:
    """The arguments of a loss for b examples: nested values whose tensors have the examples on their first axis."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of the arguments, in a fixed order."""
        if self._are_tensors_alone:
            return list(self.args)
        return tensors((self.args, dict(self.kwargs)))

    @cached_property
    def count(self) -> int:
        """The number of examples.

        Raises:
            PrivacyError: there is no tensor, or the tensors do not agree in their number of rows.
        """
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        if not shapes:
            raise PrivacyError("the loss has no tensor among its arguments: pass the examples after the loss")
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise PrivacyError(
                f"expected tensors with one row per example, got the shapes {', '.join(map(str, shapes))}; pass "
                "constants in the loss itself"
            )
        return shapes[0][0]

    @cached_property
    def has_other_entries(self) -> bool:
        """Whether some argument is a sequence without tensors, such as a list of texts, or an array."""
        return not self._are_tensors_alone and any(
            map(_has_entries, leaves((self.args, dict(self.kwargs)), _has_entries))
        )

    def with_tensors(self, tensors: Sequence[Tensor]) -> Microbatch:
        """The same with these tensors, which stand for one example each.

        A sequence without tensors has entries of several examples. In its place is a value that refuses to be read,
        unless there is only one example.
        """
        if self._are_tensors_alone:
            return Microbatch(tuple(tensors), {})
        following, alone = iter(tensors), self.count == 1

        def of_one(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return next(following)
            return _Unreadable(leaf) if _has_entries(leaf) and not alone else leaf

        args, kwargs = map_leaves(of_one, (self.args, dict(self.kwargs)), _has_entries)
        return Microbatch(args, kwargs)

    def of_row(self, k: int) -> Microbatch:
        """The arguments of example k alone, in memory of its own."""
        return self.with_tensors([tensor[k : k + 1].detach().clone() for tensor in self.tensors])

    @property
    def _are_tensors_alone(self) -> bool:
        return not self.kwargs and all(isinstance(arg, Tensor) for arg in self.args)


def _has_entries(value: Any) -> bool:
    """Whether a value may have an entry for each example though it is no tensor; ``None`` for all of them is nothing.

    Whether it has as many entries as there are examples does not matter: the number of examples is random, and an
    error must not be.
    """
    if isinstance(value, list | tuple | set | frozenset):
        inside = leaves(list(value))
        return any(leaf is not None for leaf in inside) and not any(isinstance(leaf, Tensor) for leaf in inside)
    return hasattr(type(value), "__array__") and not isinstance(value, Tensor) and getattr(value, "ndim", 1) > 0


class _Unreadable:
    """In place of a sequence with entries of several examples, within the loss of one of them."""

    def __init__(self, value: Any) -> None:
        kind = type(value).__name__
        first = next(iter(value)) if isinstance(value, list | tuple | set | frozenset) else value
        object.__setattr__(
            self,
            "_said",
            f"the loss reads a {kind} with entries of several examples, such as {type(first).__name__} {first!r:.60}: "
            "every example would see all of them. Make tensors with one row per example of them in the data set or "
            "in collate_fn (tokenise texts there), or take one example at a time by batch.microbatches(1). Constants "
            "belong in the loss itself or in functools.partial",
        )

    def _refuse(self, *_: Any) -> Never:
        raise PrivacyError(object.__getattribute__(self, "_said"))

    def __repr__(self) -> str:
        return "<entries of several examples>"

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __eq__ = __array__ = __call__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __add__ = __radd__ = __mul__ = __lt__ = __gt__ = __hash__ = _refuse
