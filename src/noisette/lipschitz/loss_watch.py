"""What a vectorised loss may use: its arguments, the model, what it computes from them, and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from noisette.core.loss import OutsideTensors, is_wrapped
from noisette.core.trace import CALL, kept_from_another_call, outputs_of, tensors_among


class LossWatch(TorchFunctionMode):
    """Checks every tensor that the loss uses within it.

    Args:
        of_model: parameters and buffers.
        outside: the tensors from outside that the loss used before.

    Raises:
        PrivacyError: the loss uses a tensor from outside that may have been computed from records, or one that an
            earlier call has left.
    """

    def __init__(self, of_model: Iterable[Tensor], outside: OutsideTensors) -> None:
        super().__init__()
        # The values keep their tensors alive, so that no ``id`` is reused.
        self._known = {id(tensor): tensor for tensor in of_model}
        self._outside = outside
        self._call = object()
        self._has_begun = False

    def begin(self, level: int, tensors: Sequence[Tensor]) -> None:
        """The loss begins, with these tensors of the examples."""
        self._has_begun = True
        for tensor in tensors:
            setattr(tensor, CALL, self._call)

    def buffer(self, name: str, copy: Tensor) -> Tensor:
        """What stands in the model for the copy of a buffer: the copy."""
        self._known[id(copy)] = copy
        return copy

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._has_begun:
            return func(*args, **kwargs)  # what prepares the arguments
        for tensor in tensors_among(args, kwargs):
            if is_wrapped(tensor):
                self._check_of_this_call(tensor)
            elif id(tensor) not in self._known:
                self._outside.check(tensor)
        output = func(*args, **kwargs)
        for tensor in outputs_of(output):
            if is_wrapped(tensor):
                setattr(tensor, CALL, self._call)
            else:
                self._known[id(tensor)] = tensor
                if not tensor.requires_grad:
                    self._outside.made(tensor)
        return output

    def _check_of_this_call(self, tensor: Tensor) -> None:
        """Without it ``vmap`` would take a tensor of other examples row by row, as that of the examples now."""
        if getattr(tensor, CALL, self._call) is not self._call:
            raise kept_from_another_call(tensor)
        setattr(tensor, CALL, self._call)  # made by code that is hidden from torch functions
