"""The model's buffers within a batch: what a batch may neither tell nor leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateImportUsage]


class ModelBuffers:
    """The buffers that a model had when the first records of a batch were read.

    Guarantee: what the loss of one example writes into buffers reaches no other example and is not released.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[str, tuple[Tensor, int, Tensor]] | None = None  # the buffer, its version, and its values
        self.seed = torch.initial_seed()  # of the random numbers that all records of a batch share, on all ranks

    def begin_batch(self, seed: int = 0) -> None:
        """Remember the buffers and their values: the first records of a batch are about to be read."""
        self.seed = seed
        self._kept = {name: (b, version_of(b), b.detach().clone()) for name, b in self._model.named_buffers()}

    def end_batch(self) -> list[str]:
        """Put back what was written since the batch began, and give the names of the buffers that were.

        Otherwise spectral norms go on, as in a forward pass of the model.
        """
        kept, self._kept = self._kept or {}, None
        now = dict(self._model.named_buffers())
        written = [
            name for name, (b, version, _) in kept.items() if now.get(name) is not b or version_of(b) != version
        ] + sorted(now.keys() - kept.keys())
        for name in written:
            path, _, own = name.rpartition(".")
            module = self._model.get_submodule(path)
            if name in kept:
                module._buffers[own] = kept[name][2]
            else:
                del module._buffers[own]
        if kept and not written:  # without a buffer nothing iterates
            advance_spectral_norms(self._model)
        return written

    def values(self) -> dict[str, Tensor]:
        """The values that the batch computes with, by name; the model's own buffers outside of a batch."""
        if self._kept is None:
            return dict(self._model.named_buffers())
        return {name: values for name, (_, _, values) in self._kept.items()}

    def lent(self, change: Callable[[str, Tensor], Tensor] = lambda name, copy: copy) -> AbstractContextManager[object]:
        """Within it the model has copies of its buffers, each of them changed by this function of its name and copy."""
        copies = {name: change(name, values.detach().clone()) for name, values in self.values().items()}
        return _reparametrize_module(self._model, copies) if copies else nullcontext()


def version_of(tensor: Tensor) -> int:
    """The number of writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """The numbers of writes into each of the tensors."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


@runtime_checkable
class RefreshesFromPublicData(Protocol):
    """A hook that brings a model's public statistics up to date, in the same tensors, before a call."""

    def refresh(self, model: nn.Module) -> None:
        """Recompute the statistics if weights have changed."""
        ...


def refresh_public_statistics(model: nn.Module) -> None:
    """Bring what hooks compute from the weights and public data up to date in the model's own buffers.

    Copies of the buffers are dropped after a call, and a graph has no hooks.
    """
    for hook in model._forward_pre_hooks.values():
        if isinstance(hook, RefreshesFromPublicData):
            hook.refresh(model)


@torch.no_grad()
def advance_spectral_norms(model: nn.Module) -> None:
    """One power iteration of each spectral norm in training mode; other parametrizations with buffers likewise.

    They read the weights alone, so this tells nothing about the batch. In the forward pass each microbatch starts from
    the same vectors, so that the weights of a step are the same in all of them.
    """
    for module in model.modules():
        if isinstance(module, ParametrizationList) and module.training and next(module.buffers(), None) is not None:
            module()
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                hook.compute_weight(module, do_power_iteration=module.training)
