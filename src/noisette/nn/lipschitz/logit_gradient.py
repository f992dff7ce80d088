"""Each example's gradient is clipped on its way back, where it is only a few numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import per_example_norms


class ClipLogitGrad(nn.Module):
    """Leaves what passes as it is; going back, scales each example's gradient to a norm of at most ``clip``.

    It stands behind the last layer, or in front of any other. The loss is one per example and summed, not averaged. A
    gradient that is not finite becomes zeros.

    Guarantee: whatever the loss, one example's gradient is at most ``clip`` in front of it, over all its numbers. A
    second backward pass through the same call would add a second gradient of that size, so it is refused; with it
    :class:`noisette.PerExampleClip` is, which weights losses and expects gradients to follow.
    Source: Bethune et al. 2024, section 3 (loss-gradient clipping).

    Raises:
        ValueError: ``clip`` is not a finite number above zero.
        RuntimeError: a second backward pass.

    >>> scores = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> (10 * ClipLogitGrad(0.5)(scores)).sum().backward()
    >>> scores.grad
    tensor([[0.3536, 0.3536]])
    """

    def __init__(self, clip: float) -> None:
        super().__init__()
        checks.positive(clip=clip)
        self.clip = clip

    def forward(self, x: Tensor) -> Tensor:
        return _Clipped.apply(x, self.clip)

    def bound_forward(self, x: NormBound) -> NormBound:
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return min(g, self.clip), {}

    def extra_repr(self) -> str:
        return f"{self.clip:g}"


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clip: float) -> Tensor:
        ctx.clip = clip
        ctx.passed, ctx.kept_graph = False, False
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        [gradient] = gradients
        if ctx.passed and ctx.kept_graph:
            return gradient, None  # the derivative of a gradient: it passes an identity
        if ctx.passed:
            raise RuntimeError(
                "a second backward pass reached ClipLogitGrad through one call of the model: what it clips is the "
                "gradient of one loss per example. Add losses up before backward; PerExampleClip does without it"
            )
        ctx.passed, ctx.kept_graph = True, torch.is_grad_enabled()
        norms = per_example_norms(gradient)
        rows = (len(gradient), *[1] * (gradient.dim() - 1))
        keep = norms.isfinite()
        excess = torch.where(keep, norms / ctx.clip, 1.0).clamp(min=1).to(gradient.dtype)
        return torch.where(keep.view(rows), gradient / excess.view(rows), 0.0), None
