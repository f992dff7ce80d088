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


def held_noise(model: nn.Module) -> Callable[[Callable[[], int]], Callable[[], None]] | None:
    """What draws the noise on the weights of a model once for a batch; ``None`` for a model without such noise.

    Records of one forward pass share a draw. With another draw for each microbatch, which records share one would
    depend on how many come before them, and one record more would move all those behind it to other draws. Likewise
    for each rank: which records a rank computes depends on the others of the batch.

    Args:
        model: whose parts may draw noise.

    Returns:
        A function of what gives the seed of all ranks; it draws, and returns what ends the batch. It raises a
        ``PrivacyError`` where noise is drawn within a forward pass, at each time step.
    """
    candidates = [
        (part, each)
        for part in model.modules()
        for each in (*part._forward_pre_hooks.values(), vars(part).get("forward"))
    ]
    found = [(part, each) for part, each in candidates if isinstance(each, HoldsNoise)]
    if not found:
        return None

    def let_go() -> None:
        for _, each in found:
            each.let_go()

    def hold(seed: Callable[[], int]) -> Callable[[], None]:
        before = RandomStates.now()
        seed_torch(seed())
        try:
            for part, each in found:
                each.hold(part)
        except BaseException:
            let_go()
            raise
        finally:
            before.restore()
        return let_go

    return hold
