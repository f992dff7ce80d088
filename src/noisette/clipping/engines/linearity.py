"""Whether a backward pass is linear in the gradient that it starts from, as engines that weigh the losses assume."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.core.backward import LocatedRecording, user_hooks_disabled


def may_be_nonlinear(forward: LocatedRecording) -> bool:
    """Whether code of the user takes part in the backward pass: a hook, or an autograd function written in Python.

    Such code may clip, round or normalise the gradients that pass through it.
    """
    return forward.recording.hooked or forward.graph.custom


def adds_to_zero(forward: LocatedRecording, parameters: Mapping[str, Tensor]) -> bool:
    """Whether a backward pass that starts from zero ends in something else, such as behind a hook that adds a constant.

    A pass for one example starts from zero at all others. If zero stays zero, they add nothing to its gradient.
    """
    if not may_be_nonlinear(forward):
        return False
    with user_hooks_disabled(parameters.values()):
        gradients = torch.autograd.grad(
            forward.losses,
            list(parameters.values()),
            torch.zeros_like(forward.losses),
            retain_graph=True,
            allow_unused=True,
        )
    return any(bool(g.count_nonzero()) for g in gradients if g is not None)
