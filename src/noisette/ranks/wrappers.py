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


# What keeps a wrapper from exchanging anything: buffers in its call, gradients in a backward pass, and the first
# gradients of a graph that it was told is always the same.
_AT_REST = {
    "require_forward_param_sync": False,
    "require_backward_grad_sync": False,
    "_static_graph_delay_allreduce_enqueued": True,
}


def canonical_name(root: nn.Module, name: str) -> str:
    """The name of a parameter or buffer of a module, without the wrappers on its path.

    The noise of a parameter is drawn by its name, so a run must have the same names however its model is wrapped.

    >>> from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    >>> canonical_name(checkpoint_wrapper(nn.Linear(1, 1)), "_checkpoint_wrapped_module.weight")
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
        self.module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._before: list[tuple[nn.Module, str, bool]] = []
        for wrapper in [module for module in model.modules() if isinstance(module, DistributedDataParallel)]:
            for flag, value in _AT_REST.items():
                self._before.append((wrapper, flag, getattr(wrapper, flag, value)))
                setattr(wrapper, flag, value)

    def close(self) -> None:
        """The wrapper exchanges as before."""
        for wrapper, flag, before in self._before:
            setattr(wrapper, flag, before)
        self._before = []
