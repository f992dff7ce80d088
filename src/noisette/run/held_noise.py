"""Noise on weights that all records of a batch share: drawn once, before the first of them is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn

from noisette.core.state import RandomStates, seed_torch


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
