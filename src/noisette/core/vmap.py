"""The loss of one example, for all examples of a microbatch at once: ``torch.func.vmap``.

Inside of it no operation of torch sees more than one example. The names of ``vmap`` that are private to PyTorch are all
in this file.

Inside ``vmap`` a tensor of all examples is wrapped: it has the shape of one example's tensor, and the tensor within,
the *physical* one, has one more axis for the examples. A tensor that depends on no example is not wrapped.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.vmap import lazy_load_decompositions  # pyright: ignore[reportPrivateImportUsage]
from torch.distributions import Distribution
from torch.nn.utils.rnn import pack_padded_sequence

from noisette.core.buffers import ModelBuffers
from noisette.core.loss import Loss, Microbatch
from noisette.errors import PrivacyError

is_wrapped = _functorch.is_functorch_wrapped_tensor  # by any transformation of torch.func
is_batched = _functorch.is_batchedtensor  # by vmap


def current_level() -> int | None:
    """The number of nested transformations around this code; ``None`` outside of any."""
    return _functorch.maybe_current_level()


def level_of(tensor: Tensor) -> int:
    """The number of the transformation that wrapped this tensor."""
    return _functorch.maybe_get_level(tensor)


def physical(tensor: Tensor) -> Tensor:
    """The tensor of all examples within a batched tensor, with the examples on its first axis."""
    inner, axis = _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)
    return inner if axis == 0 else inner.movedim(axis, 0)


def example_axis(tensor: Tensor) -> int | None:
    """The axis of the physical tensor on which ``vmap`` has the examples; ``None`` for a tensor that is not batched."""
    return _functorch.maybe_get_bdim(tensor) if is_batched(tensor) else None


def unwrapped(tensor: Tensor) -> Tensor:
    """The physical tensor within a batched tensor, with its own order of axes; any other tensor is itself.

    Raises:
        PrivacyError: the tensor is inside of a ``vmap`` of the user's own, too.
    """
    inner = _functorch.get_unwrapped(tensor) if is_batched(tensor) else tensor
    if is_batched(inner):
        raise PrivacyError("the model was called inside of another vmap; call it with one example, outside of it")
    return inner


def batched(tensor: Tensor, level: int) -> Tensor:
    """A physical tensor, wrapped: the inverse of :func:`physical`."""
    return _functorch._add_batch_dim(tensor, 0, level)


@contextmanager
def vmap_level(count: int) -> Iterator[int]:
    """Within it ``vmap`` is in effect for so many examples, each with random numbers of its own; gives its level."""
    # Without them vmap runs some operations, such as the negative log-likelihood, once for each example.
    lazy_load_decompositions()
    level = _functorch._vmap_increment_nesting(count, "different")
    try:
        yield level
    finally:
        _functorch._vmap_decrement_nesting()


class outside:  # noqa: N801
    """Within it, operations run on physical tensors as if there were no transformation."""

    def __enter__(self) -> None:
        self._layers: list[Any] = []
        while _functorch.peek_interpreter_stack() is not None:
            self._layers.append(_functorch.pop_dynamic_layer_stack())

    def __exit__(self, *raised: object) -> None:
        while self._layers:
            _functorch.push_dynamic_layer_stack(self._layers.pop())


@contextmanager
def as_if_compiled(checkpoint: Callable[..., Iterator[None]] | None = None) -> Iterator[None]:
    """Within it code is told that it is being compiled; compiled parts and checkpoints run as ordinary functions.

    ``torch.compiler.is_compiling()`` asks code not to branch on the values of tensors. ``torch.compile`` cannot take
    batched tensors. A checkpoint would run its function again after ``vmap`` has returned; ``checkpoint`` stands in the
    place of what it does before and after the function, which is nothing where it is not given.
    ``torch.distributions`` do not check their parameters, since they would check those of all examples at once.
    """
    compiler: Any = torch.compiler
    checkpoints: Any = torch.utils.checkpoint
    eager = compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    before, validates = compiler._is_compiling_flag, Distribution._validate_args
    generator, function = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
    compiler._is_compiling_flag, Distribution._validate_args = True, False
    checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = (
        checkpoint or _run_once,
        _RunOnce,
    )
    try:
        with eager:
            yield
    finally:
        compiler._is_compiling_flag, Distribution._validate_args = before, validates
        checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = generator, function


def _run_once(*arguments: object, **keywords: object) -> Iterator[None]:
    """The part of a checkpoint before the function runs, and the part after it: nothing."""
    yield


class _RunOnce:
    """In place of the autograd function of a checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


_WRITES = (
    "writes values of an example into a tensor that all examples share; a buffer or parameter must not depend on "
    "examples, and other tensors can be made from the input, as x.new_zeros(...)"
)
_STATISTICS = (
    "would update batch norm's running statistics from examples, which are saved without noise; convert the model "
    "with noisette.nn.convert_batch_norm, or put these modules into eval mode"
)
CALLS_FUNCTIONS = "higher order operator"  # in messages of torch's own too
_CONTROL_FLOW = (
    "uses an operator of torch that calls functions, as torch.cond does, and that cannot be followed; write a branch "
    "or a loop of Python, or choose by torch.where"
)
_CAUSES = {  # a part of PyTorch's message -> what it means
    **dict.fromkeys(
        (".item()", "Cannot access data pointer of Tensor"),
        "takes the value of one example as a Python number, as a branch on it, .item() or a shape from it does",
    ),
    "data-dependent control flow": (
        "branches on the values of an example, or on a random number; write the choice with torch.where"
    ),
    **dict.fromkeys(
        ("Batch norm got a batched tensor", "Expected more than 1 value per channel when training"),
        _STATISTICS,
    ),
    "match the broadcast shape": _WRITES,
    "inplace": _WRITES,
    "cannot register a hook": (
        "registers a hook on a tensor, which has no gradient of its own inside of vmap; change gradients by a "
        "torch.autograd.Function with a rule for vmap"
    ),
    "dynamic": "makes a tensor whose shape depends on the values of an example; use masks of a fixed shape",
    "autograd.Function": (
        "uses an autograd.Function that torch.func.vmap cannot take; give the class generate_vmap_rule = True, or draw "
        "random numbers that come from it in front of the call, and pass them as an argument with one row per example"
    ),
    CALLS_FUNCTIONS: _CONTROL_FLOW,
    "does not require grad": (
        "asks for a gradient with respect to values of an example by torch.autograd.grad; use torch.func.grad"
    ),
}
_PACKS = "packs a sequence by the length of an example; use a mask of a fixed shape"
_SIGNS = ("vmap", "functorch", "torch.func", "Batching rule", "BatchedTensor", *_CAUSES)
_WAY_OUT = "PerExampleClip in one process would compute such a loss one example at a time."


class NotVectorizedError(PrivacyError):
    """A loss that ``vmap`` cannot take, though one example at a time may be computed by it.

    Attributes:
        cause: the reason in words, without a way out.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause} {_WAY_OUT}")
        self.cause = cause


def explained(error: Exception, model: nn.Module) -> PrivacyError | None:
    """What an error of ``vmap`` means and what to do, or ``None`` for an error that has nothing to do with it."""
    message = str(error)
    packs = _packs(error.__traceback__)
    if not packs and not any(sign in message for sign in _SIGNS):
        return None
    cause = _PACKS if packs else next((cause for sign, cause in _CAUSES.items() if sign in message), None)
    where = _where(error.__traceback__, model)
    said = f"{where} {cause}." if cause else f"{where} cannot be vectorised: {message.splitlines()[0]}"
    return PrivacyError(said) if cause in (_STATISTICS, _CONTROL_FLOW) else NotVectorizedError(said)


def _packs(traceback: TracebackType | None) -> bool:
    """Whether the error arose where sequences are packed."""
    while traceback is not None:
        if traceback.tb_frame.f_code is pack_padded_sequence.__code__:
            return True
        traceback = traceback.tb_next
    return False


def _where(traceback: TracebackType | None, model: nn.Module) -> str:
    """The innermost module of the model in which the error arose, or the loss."""
    names = {id(module): name for name, module in model.named_modules()}
    found = "the loss"
    while traceback is not None:
        module = traceback.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = f"{names[id(module)] or 'the model'} ({type(module).__name__})"
        traceback = traceback.tb_next
    return found


def one_value(value: object) -> Tensor:
    """The loss of one example as a scalar.

    Raises:
        PrivacyError: it is not a tensor with one value.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"expected the loss of one example, a tensor with one value, got {got}")
    return value.reshape(())


def vectorized_losses(
    loss: Loss,
    model: nn.Module,
    batch: Microbatch,
    buffers: ModelBuffers,
    begin: Callable[[int, Sequence[Tensor]], None] = lambda level, tensors: None,
    buffer: Callable[[str, Tensor], Tensor] = lambda name, copy: copy,
    checkpoint: Callable[..., Iterator[None]] | None = None,
) -> Tensor:
    """The loss of each example of the batch, computed for all at once, shape (b,).

    Args:
        loss: called as ``loss(model, *args, **kwargs)`` with one example, whose tensors keep a batch axis of length 1.
        model: given to the loss, with copies of its buffers.
        batch: the arguments of b examples.
        buffers: of the model.
        begin: called inside of ``vmap``, before the loss, with the level of ``vmap`` and the tensors of the examples.
        buffer: what stands in the model for the copy of a buffer.
        checkpoint: what a checkpoint without reentrant autograd does; it keeps its activations if this is not given.

    Guarantee: no operation of torch sees two examples, and what the loss writes into buffers is dropped.

    Raises:
        PrivacyError: the loss cannot be vectorised, or returns something else than one value.
    """
    count = batch.count
    with as_if_compiled(checkpoint), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
        try:
            rows = [tensor.unsqueeze(1) for tensor in batch.tensors]
            with vmap_level(count) as level:
                tensors = [batched(row, level) for row in rows]
                begin(level, tensors)
                one = batch.with_tensors(tensors)
                with buffers.lent(buffer):
                    value = one_value(loss(model, *one.args, **one.kwargs))
                return physical(value) if is_wrapped(value) else value.expand(count)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            if isinstance(error, PrivacyError) or (said := explained(error, model)) is None:
                raise
            raise said from error
