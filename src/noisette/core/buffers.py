"""The buffers of a model within a batch: the loss computes with copies of them, which are dropped after each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateImportUsage]

from noisette.core.randomness import RandomStates, seed_torch


class ModelBuffers:
    """The buffers that a model had when the first records of a batch were read.

    Guarantee: what the loss of one example writes into buffers reaches no other example and is not released.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[str, tuple[Tensor, int, Tensor]] | None = None  # the buffer, its version, and its values

    def begin_batch(self) -> None:
        """Remember the buffers and their values: the first records of a batch are about to be read."""
        self._kept = {name: (b, _version(b), b.detach().clone()) for name, b in self._model.named_buffers()}

    def end_batch(self) -> list[str]:
        """Put back what was written since the batch began; give the names of the buffers that were."""
        kept, self._kept = self._kept or {}, None
        now = dict(self._model.named_buffers())
        written = [
            name for name, (b, version, _) in kept.items() if now.get(name) is not b or _version(b) != version
        ] + sorted(now.keys() - kept.keys())
        for name in written:
            path, _, own = name.rpartition(".")
            module = self._model.get_submodule(path)
            if name in kept:
                module._buffers[own] = kept[name][2]
            else:
                del module._buffers[own]
        return written

    def values(self) -> dict[str, Tensor]:
        """The values that the batch computes with, by name; the model's own buffers outside of a batch."""
        if self._kept is None:
            return dict(self._model.named_buffers())
        return {name: values for name, (_, _, values) in self._kept.items()}

    @contextmanager
    def lent(self, change: Callable[[str, Tensor], Tensor] = lambda name, copy: copy) -> Iterator[None]:
        """Within it the model has copies of its buffers, each of them changed by this function of its name and copy."""
        with torch._C.DisableTorchFunction():  # what records the loss does not see how they are made
            copies = {name: change(name, values.detach().clone()) for name, values in self.values().items()}
        if not copies:
            yield
            return
        with _reparametrize_module(self._model, copies):
            yield


def _version(tensor: Tensor) -> int:
    """The number of writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


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


@runtime_checkable
class HoldsNoise(Protocol):
    """A hook before a module's forward pass, or what takes the place of its forward method, that draws noise for it."""

    def hold(self, module: nn.Module) -> None:
        """Draw noise now, which all forward passes have until it is let go.

        Raises:
            PrivacyError: noise is drawn within a forward pass.
        """
        ...

    def let_go(self) -> None:
        """Draw for each forward pass again."""
        ...


def hold_noise(model: nn.Module, seed: Callable[[], int]) -> Callable[[], None]:
    """Draw the noise of a batch: all forward passes have it until the function that is returned is called.

    Records of one forward pass share a draw. With another draw for each microbatch, which records share one would
    depend on how many come before them, and one record more would move all those behind it to other draws. Likewise
    for each rank: which records a rank computes depends on the others of the batch.

    Args:
        model: whose parts may draw noise.
        seed: gives the seed of all ranks.

    Raises:
        PrivacyError: noise is drawn within a forward pass, at each time step.
    """
    candidates = [
        (part, each)
        for part in model.modules()
        for each in (*part._forward_pre_hooks.values(), vars(part).get("forward"))
    ]
    found = [(part, each) for part, each in candidates if isinstance(each, HoldsNoise)]

    def let_go() -> None:
        for _, each in found:
            each.let_go()

    if not found:
        return let_go
    try:
        before = RandomStates.now()
        seed_torch(seed())
        try:
            for part, each in found:
                each.hold(part)
        finally:
            before.restore()
    except BaseException:
        let_go()
        raise
    return let_go
