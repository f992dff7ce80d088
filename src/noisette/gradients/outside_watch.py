"""The check of tensors from outside for bounds that need no recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from noisette.core.outside import OutsideTensors
from noisette.core.trace import tensors_among
from noisette.core.trees import tensors
from noisette.core.vmap import current_level, is_wrapped


class OutsideWatch(TorchFunctionMode):
    """Checks every tensor that a vectorised loss uses and that is not of the model, an argument, or made inside.

    Raises:
        PrivacyError: the loss uses a tensor from outside that is not constant.
    """

    def __init__(self, model: nn.Module, outside: OutsideTensors, public: Iterable[Tensor]) -> None:
        super().__init__()
        # The values keep their tensors alive, so that no ``id`` is reused.
        self._known = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._outside = outside
        outside.begin(public)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if current_level() is None:
            return func(*args, **kwargs)  # vmap itself looks at its arguments
        for tensor in tensors_among(args, kwargs):
            if id(tensor) not in self._known and not is_wrapped(tensor):
                self._outside.check(tensor)
        output = func(*args, **kwargs)
        for tensor in tensors(output):
            self._known[id(tensor)] = tensor
            if not tensor.requires_grad:
                self._outside.made(tensor)
        return output
