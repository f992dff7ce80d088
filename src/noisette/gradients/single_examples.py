"""The gradients of one example after the other, for a loss that ``torch.func.vmap`` cannot vectorise.

Each example is in a call of the loss alone, so code may branch on its values. What could pass from one call to the next
is what the calls leave behind: the tensors that a call reaches are looked at here, and what Python keeps is compared by
the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noisette.core import vmap as internals
from noisette.core.backward import user_hooks_disabled
from noisette.core.recording import Draft, Operation
from noisette.core.trace import Loss, Microbatch, Recorder, Tape, one_value, outputs_of, tensors_among
from noisette.errors import PrivacyError
from noisette.gradients.outside_tensors import OutsideTensors

_CALL = "_noisette_single_call"  # the attribute that tells in which call of the loss a tensor was computed


def gradients_of_each(
    tape: Tape,
    loss: Loss,
    batch: Microbatch,
    outside: OutsideTensors,
    public: Iterable[Tensor],
    after_each: Callable[[], None],
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The loss of each example, (1,), and its gradients, by name of the parameter; without those it does not depend on.

    Args:
        tape: of the model; it records nothing.
        loss: the loss of one example.
        batch: its arguments for b examples.
        outside: the tensors from outside that the loss used before.
        public: tensors from outside that are declared public.
        after_each: called after each example; raises if the call has left something behind.

    Raises:
        PrivacyError: the loss is not one value, writes into the model, or uses a tensor that an earlier call has
            computed, or one from outside that is not constant.
    """
    parameters = list(tape.root.parameters())
    for k in range(batch.count):
        one = batch.with_tensors([tensor[k : k + 1].detach().clone() for tensor in batch.tensors])
        versions = [_version(tensor) for tensor in parameters]
        value = _loss_of(tape, loss, one, outside, public)
        if [_version(tensor) for tensor in parameters] != versions:
            raise PrivacyError(
                "the loss writes into a parameter of the model; parameters change by optimizer steps alone"
            )
        yield value.detach().reshape(1), _gradients(value, tape.parameters)
        del value
        after_each()


def call_with_zeros(
    tape: Tape, loss: Loss, batch: Microbatch, outside: OutsideTensors, public: Iterable[Tensor]
) -> None:
    """Call the loss with one example of zeros, so that what it sets up in its first call depends on no record.

    Args:
        tape, loss, batch, outside, public: as for :func:`gradients_of_each`; the shapes are those of the batch.
    """
    zeros = batch.with_tensors([torch.zeros_like(tensor[:1]) for tensor in batch.tensors])
    with suppress(Exception):  # the loss may not be defined there; then nothing is set up
        _loss_of(tape, loss, zeros, outside, public)


def _loss_of(tape: Tape, loss: Loss, one: Microbatch, outside: OutsideTensors, public: Iterable[Tensor]) -> Tensor:
    """The loss of one example, a scalar."""
    outside.begin(public)
    tape.pop()
    with (
        internals.as_if_compiled(),
        _CreatedInside() as created,
        tape.recording_by(partial(_SingleRecorder, outside=outside, created=created)) as recorder,
    ):
        recorder.begin(one.tensors)
        value = one_value(loss(tape.root, *one.args, **one.kwargs))
    outside.end()
    tape.pop()
    return value


def _gradients(value: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of one loss."""
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if not value.requires_grad:
        return {}
    with user_hooks_disabled(list(trained.values())):
        found = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    dense = [g if g is None or g.layout is torch.strided else g.to_dense() for g in found]
    return {name: gradient for name, gradient in zip(trained, dense, strict=True) if gradient is not None}


class _SingleRecorder(Recorder):
    """Looks at the tensors that a loss reaches, and records nothing."""

    def __init__(
        self,
        draft: Draft,
        weights: Iterable[Tensor],
        constants: Iterable[Tensor],
        rewrites: Mapping[Operation, Operation],
        outside: OutsideTensors,
        created: _CreatedInside,
    ) -> None:
        super().__init__(draft, weights, constants, rewrites)
        self._outside = outside
        self._created = created
        self._inside = {**{key: held.tensor for key, held in self._weights.items()}, **self._constants}
        self._call = object()

    def begin(self, tensors: Sequence[Tensor]) -> None:
        """The code of the loss begins, with these tensors of the example."""
        for tensor in tensors:
            setattr(tensor, _CALL, self._call)

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        of_example = False
        others: dict[int, int] = {}  # versions of the arguments that no example was used for, by id
        for tensor in tensors_among(args, kwargs):
            if self._is_of_example(tensor):
                of_example = True
            else:
                others[id(tensor)] = _version(tensor)
        output = func(*args, **kwargs)
        results = [*outputs_of(output), *(args[:1] if func is Tensor.__setitem__ else ())]
        for tensor in results:
            if of_example and others.get(id(tensor)) != _version(tensor):
                setattr(tensor, _CALL, self._call)
            elif not of_example and id(tensor) not in self._inside:
                self._inside[id(tensor)] = tensor
                if not tensor.requires_grad:
                    self._outside.made(tensor)
        return output

    def _is_of_example(self, tensor: Tensor) -> bool:
        """Whether values of the example have gone into a tensor.

        Raises:
            PrivacyError: those of another example have, or it is a tensor from outside that is not constant.
        """
        call = getattr(tensor, _CALL, None)
        if call is self._call:
            return True
        if call is not None:
            raise PrivacyError(
                f"the loss uses a tensor of shape {tuple(tensor.shape)} that an earlier call has computed from other "
                "examples; begin each call with a state that depends on no example"
            )
        if id(tensor) in self._inside:
            return False
        if tensor in self._created:  # by code that is hidden from torch functions, as that of an autograd function
            setattr(tensor, _CALL, self._call)
            return True
        if internals.is_wrapped(tensor):
            raise PrivacyError(
                "the loss needs a call of its own for each example, in which a transformation of torch.func cannot be "
                "followed; use torch.autograd.grad in the loss instead"
            )
        self._outside.check(tensor)
        return tensor.requires_grad


class _CreatedInside(TorchDispatchMode):
    """The memory that operations have made since it was entered, also where no torch function shows it."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, StorageWeakRef] = {}  # held, so that no other memory gets the same number

    def __contains__(self, tensor: Tensor) -> bool:
        return (place := _memory(tensor)) is not None and place.cdata in self._made

    def __torch_dispatch__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {place.cdata for tensor in _tensors((args, kwargs)) if (place := _memory(tensor)) is not None}
        for tensor in _tensors(output):
            if (place := _memory(tensor)) is not None and place.cdata not in given:
                self._made[place.cdata] = place
        return output


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _memory(tensor: Tensor) -> StorageWeakRef | None:
    """The memory of a tensor; ``None`` for a tensor without memory of its own."""
    ordinary = tensor.layout is torch.strided and not tensor.is_meta and not internals.is_wrapped(tensor)
    return StorageWeakRef(tensor.untyped_storage()) if ordinary else None


def _version(tensor: Tensor) -> int:
    """The number of writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version
