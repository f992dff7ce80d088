"""Checks of the losses: one value per example, computed from that example alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from noisette.errors import PrivacyError

_TOLERANCE = 1e-3


def check_one_per_example(losses: Tensor) -> None:
    """Check that the losses are a vector that depends on the model.

    Raises:
        PrivacyError: a scalar, a matrix, or losses without a graph.
    """
    if losses.dim() == 0:
        raise PrivacyError('expected one loss per example, got a scalar: pass reduction="none" to the loss')
    if losses.dim() > 1:
        raise PrivacyError(
            f"expected one loss per example, got shape {tuple(losses.shape)}: sum each example's own losses first"
        )
    if losses.shape[0] and not losses.requires_grad:
        raise PrivacyError("the losses depend on no trainable parameter: was the model called under no_grad?")


def check_independent(losses: Tensor, outputs: Sequence[GradientEdge]) -> None:
    """Check that each loss depends on its own example's output alone.

    Every second loss changes its sign: with independent losses exactly the gradients at those examples' outputs do.

    Raises:
        PrivacyError: some loss depends on another example, as a contrastive or in-batch loss does.
    """
    b = losses.shape[0]
    signs = torch.ones_like(losses)
    signs[1::2] = -1
    straight = torch.autograd.grad(losses, outputs, torch.ones_like(losses), retain_graph=True, allow_unused=True)
    flipped = torch.autograd.grad(losses, outputs, signs, retain_graph=True, allow_unused=True)
    for plain, turned in zip(straight, flipped, strict=True):
        if plain is None or turned is None or plain.shape[0] % b:
            continue
        rows, turned_rows = plain.reshape(b, -1), turned.reshape(b, -1)
        error = (turned_rows - rows * signs.to(rows.dtype).unsqueeze(1)).abs()
        if (error > _TOLERANCE * rows.abs().amax()).any():
            raise PrivacyError(
                "a loss depends on the output of another example, so one record would move the gradients of others; "
                "compute each loss from its own example (no in-batch negatives, no normalisation over the batch)"
            )
