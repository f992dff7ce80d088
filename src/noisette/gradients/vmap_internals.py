"""The names of ``torch.func.vmap`` that are private to PyTorch, all in this file.

Inside ``vmap`` a tensor of all examples is wrapped: it has the shape of one example's tensor, and the tensor within,
the *physical* one, has one more axis for the examples. A tensor that depends on no example is not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
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


def outside() -> AbstractContextManager[Any]:
    """Within it, operations run on physical tensors as if there were no transformation."""
    return temporarily_clear_interpreter_stack()


@contextmanager
def as_if_compiled() -> Iterator[None]:
    """Within it code is told that it is being compiled, and ``torch.utils.checkpoint`` keeps activations.

    ``torch.compiler.is_compiling()`` asks code not to branch on the values of tensors. A checkpoint would run its
    function again after ``vmap`` has returned. ``torch.distributions`` do not check their parameters, since they would
    check those of all examples at once.
    """
    compiler, checkpoints = torch.compiler, torch.utils.checkpoint
    before, validates = compiler._is_compiling_flag, Distribution._validate_args
    generator, function = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
    compiler._is_compiling_flag, Distribution._validate_args = True, False
    checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = _run_once, _RunOnce
    try:
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
