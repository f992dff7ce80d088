"""The loss of one example after the other, each alone, for losses that ``torch.func.vmap`` cannot take.

A loss that branches on values of an example, or makes tensors of a size that depends on them, runs here as it is: while
it runs for one example, no other example is within its reach. What one call could leave for the next is put back or
refused: attributes of modules, buffers, tensors, and plain values that Python code reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from noisette.errors import PrivacyError
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.per_example import user_hooks_disabled
from noisette.gradients.restored_modules import restored_by
from noisette.gradients.tape import outputs_of, tensors_among
from noisette.gradients.vectorized import Loss, Microbatch, one_value
from noisette.gradients.vectorized_recorder import made_by_vectorised_call
from noisette.gradients.vmap_internals import current_level, innermost, is_wrapped

Gradients = dict[str, Tensor]
State = Callable[[], Hashable]  # what Python code may read, as a value that is compared


def gradients_one_by_one(
    loss: Loss,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    batch: Microbatch,
    outside: OutsideTensors,
    public: Iterable[Tensor],
    state: State,
) -> Iterator[Gradients]:
    """The gradient of each example, by name of the parameters that its loss depends on.

    Args:
        loss: of one example, called as in :func:`noisette.gradients.vectorized.vectorized_losses`.
        model: given to the loss.
        parameters: those to take gradients of.
        batch: the arguments of b examples.
        outside: the tensors from outside that the loss used before.
        public: tensors from outside that are declared public.
        state: what model and loss may read in Python.

    Guarantee: the gradient of an example depends on that example, the weights, and what the code reaches otherwise than
    by its arguments. Each call finds modules, buffers and Python's plain values as the first one has found them.

    Raises:
        PrivacyError: a call leaves something for the next one, or does not return one value.
    """
    public, params = tuple(public), list(parameters.values())
    outside.before_examples_alone()
    for i in range(batch.count):
        one = batch.with_tensors([tensor[i : i + 1] for tensor in batch.tensors])
        outside.begin(public)
        with _left_as_found(model, state), user_hooks_disabled(params):
            with _OneExample(model, one, outside):
                value = one_value(loss(model, *one.args, **one.kwargs))
            gradients: Iterable[Tensor | None] = [None] * len(params)
            if value.requires_grad:
                gradients = torch.autograd.grad(value, params, allow_unused=True)
            del value
        outside.end()
        yield {name: _dense(g) for name, g in zip(parameters, gradients, strict=True) if g is not None}


def _dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


class _OneExample(TorchFunctionMode):
    """Checks each tensor that the loss of one example uses: its own, the model's, or a constant from outside."""

    def __init__(self, model: nn.Module, one: Microbatch, outside: OutsideTensors) -> None:
        super().__init__()
        self._outside = outside
        # Tensors are held until the call ends, so that neither ``id`` nor memory is used again within it.
        self._own = {id(tensor): tensor for tensor in (*one.tensors, *model.parameters(), *model.buffers())}
        self._memory: set[int] = set()  # of tensors made in this call: a new Parameter has the memory of one

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_among(args, kwargs):
            if id(tensor) not in self._own:
                self._check(tensor)
        if func is Tensor.__iter__:
            with self:
                return iter(args[0].unbind(0))
        output = func(*args, **kwargs)
        for tensor in outputs_of(output):
            if id(tensor) not in self._own:
                self._own[id(tensor)] = tensor
                self._memory.add(_memory_of(tensor))
        return output

    def _check(self, tensor: Tensor) -> None:
        """Check a tensor that no operation of this call has given.

        Raises:
            PrivacyError: it was computed before, from other examples or from weights.
        """
        if is_wrapped(tensor):
            if current_level() is None or made_by_vectorised_call(tensor):
                raise PrivacyError(
                    f"the loss uses a tensor of shape {tuple(tensor.shape)} that an earlier call has computed from "
                    "other examples; begin each call with a state that depends on no example"
                )
            return  # of a transformation by the loss itself
        if _memory_of(tensor) in self._memory - {0}:
            return
        if not tensor.is_leaf:
            raise PrivacyError(
                f"the loss uses a tensor of shape {tuple(tensor.shape)} that was computed from weights outside of it, "
                "or by code that is hidden from torch functions, as a TorchScript module is; compute it in the loss, by "
                "the original of such a module"
            )
        self._outside.check(tensor)


def _memory_of(tensor: Tensor) -> int:
    """The address of its memory; that of what is within a batched tensor; zero where it cannot be told."""
    tensor = innermost(tensor)
    if tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _left_as_found(model: nn.Module, state: State) -> Iterator[None]:
    """What a call leaves in modules is put back, so that the next call does not find it.

    Raises:
        PrivacyError: it leaves something elsewhere, or has changed a buffer or a weight.
    """
    restore, python = restored_by(model), state()
    held = {name: (tensor, tensor._version, tensor.detach().clone()) for name, tensor in model.named_buffers()}
    weights = [(name, tensor, tensor._version) for name, tensor in model.named_parameters()]
    try:
        yield
    finally:
        changed = [name for name, (now, version, was) in held.items() if now._version != version and _differ(now, was)]
        for name in changed:
            held[name][0].detach().copy_(held[name][2])
        restore()
    changed += [name for name, tensor, version in weights if tensor._version != version]
    if changed:
        raise PrivacyError(
            f"the loss writes into {', '.join(changed)}, which would be saved without noise; put the module that "
            "writes it into eval mode, or remove it from the model"
        )
    if state() != python:
        raise PrivacyError(
            "the loss takes values of one example as Python numbers, and leaves something behind in Python that the "
            "next example finds: a closure, a global name, or a container of a module has changed. Begin each call "
            "with a state that depends on no example"
        )


def _differ(now: Tensor, before: Tensor) -> bool:
    return not torch.equal(now.nan_to_num(), before.nan_to_num()) if now.is_floating_point() else not now.equal(before)
