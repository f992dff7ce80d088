"""The names of ``torch.func.vmap`` that are private to PyTorch, all in this file.

Inside ``vmap`` a tensor of all examples is wrapped: it has the shape of one example's tensor, and the tensor within,
the *physical* one, has one more axis for the examples. A tensor that depends on no example is not wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.vmap import lazy_load_decompositions  # pyright: ignore[reportPrivateImportUsage]
from torch.distributions import Distribution

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
