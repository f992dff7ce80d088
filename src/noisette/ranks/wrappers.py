"""Modules that wrap others: names without them, and the model inside ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from noisette.errors import PrivacyError

# The attribute under which a wrapper holds its module, and the name of the wrapper's class.
_WRAPPERS = {
    "module": "DistributedDataParallel",
    "_orig_mod": "OptimizedModule",
    "_checkpoint_wrapped_module": "CheckpointWrapper",
}


def canonical_name(root: nn.Module, name: str) -> str:
    """The name of a parameter or buffer of a module, without the wrappers on its path.

    The noise of a parameter is drawn by its name, so a run must have the same names however its model is wrapped.

    >>> import torch
    >>> canonical_name(torch.compile(nn.Linear(1, 1)), "_orig_mod.weight")
    'weight'
    """
    kept: list[str] = []
    module: object = root
    for part in name.split("."):
        if part not in _WRAPPERS or _WRAPPERS[part] not in {kind.__name__ for kind in type(module).__mro__}:
            kept.append(part)
        module = getattr(module, part, None)
    return ".".join(kept)


def canonical_parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module by their canonical names."""
    for name, p in root.named_parameters():
        yield canonical_name(root, name), p


class Unwrapped:
    """The module inside ``DistributedDataParallel``, whose exchange between ranks rests until :meth:`close`.

    A private run adds up the sums of the ranks itself. What the wrapper sends in each call would make ranks wait for
    each other that have different numbers of microbatches.

    Raises:
        PrivacyError: the module is ``nn.DataParallel``, which divides a batch among threads.
    """

    def __init__(self, model: nn.Module) -> None:
        if isinstance(model, DataParallel):
            raise PrivacyError(
                "nn.DataParallel copies the model into threads, whose uses of parameters cannot be recorded; start one "
                "process for each GPU with torchrun, and give the bound the model itself"
            )
        self._wrapper = model if isinstance(model, DistributedDataParallel) else None
        self.module: nn.Module = model
        if self._wrapper is not None:
            self.module = self._wrapper.module
            self._before = self._wrapper.require_forward_param_sync, self._wrapper.require_backward_grad_sync
            self._wrapper.require_forward_param_sync = self._wrapper.require_backward_grad_sync = False

    def close(self) -> None:
        """The wrapper exchanges as before."""
        if self._wrapper is not None:
            self._wrapper.require_forward_param_sync, self._wrapper.require_backward_grad_sync = self._before
            self._wrapper = None
