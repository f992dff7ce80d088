"""What is in ``.grad``: what the last release wrote there, and no gradient that is not private."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisette._internal.first_few import first_few
from noisette.errors import PrivacyError
from noisette.ranks.shards import local


class ReleasedGradients:
    """The gradients of the last release, which the user's hooks may have changed.

    Args:
        parameters: those that are trained, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._written: dict[str, Tensor | None] = {}

    def hand_over(self) -> None:
        """Call the user's gradient hooks with the noised gradients that a release has written to ``.grad``."""
        self._written = {name: _hand_over(p) for name, p in self._parameters.items()}

    def check_no_others(self) -> None:
        """Check that ``.grad`` holds what the last release wrote, zeros, or nothing.

        Raises:
            PrivacyError: somebody else has computed a gradient, which the next step would take for a noised one.
        """
        others = sorted(
            name
            for name, p in self._parameters.items()
            if p.grad is not None and p.grad is not self._written.get(name) and not _is_zero(p.grad)
        )
        if others:
            raise PrivacyError(
                f".grad of {first_few(others)} holds a gradient that is not private: losses.backward() was called, "
                "or .grad was set. Call run.backward(losses) instead, and clear these with optimizer.zero_grad()"
            )


def _is_zero(grad: Tensor) -> bool:
    """Whether a gradient that the release did not write holds nothing."""
    grad = local(grad)
    return grad.layout is torch.strided and not bool(grad.any())


def _hand_over(p: Tensor) -> Tensor | None:
    """Call the user's gradient hooks of a parameter with its noised gradient; return what is in ``.grad`` then.

    A parameter that was frozen during the run gets none, so that no optimizer moves it.
    """
    gradient = p.grad if p.requires_grad else None
    hooks: Mapping[int, Any] = p._backward_hooks or {}
    for hook in list(hooks.values()):
        if gradient is not None and (changed := hook(gradient)) is not None:
            gradient = changed
    p.grad = gradient
    if gradient is None:
        return None
    after: Mapping[int, Any] = getattr(p, "_post_accumulate_grad_hooks", None) or {}
    for hook in list(after.values()):
        hook(p)
    return p.grad
