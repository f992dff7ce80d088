"""Checks of the losses: one value per example, computed from that example alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from noisette.errors import PrivacyError

# Signed powers of two, which are exact in floating point: independent gradients are scaled by them to the last bit.
_WEIGHTS = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.125, -0.125])
# Of the largest gradient of a row; covers sums that a graphics card adds up in another order each time.
_TOLERANCE = 1e-6


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


def check_independent(losses: Tensor, outputs: Sequence[GradientEdge], *, one_row_each: bool = False) -> None:
    """Check that each loss depends on its own example's outputs alone.

    The losses are weighted by signed powers of two, dealt out at random: with independent losses each row of the
    gradient is multiplied by the weight of its own example, exactly. Two backward passes from the losses to the outputs
    of the model; a batch of one has nothing to compare.

    Args:
        losses: one value per example, shape (b,).
        outputs: the outputs of the model. Any axis may hold the examples, several rows to an example.
        one_row_each: whether the first axis of each output must hold the examples, one row to an example.

    Raises:
        PrivacyError: some loss depends on another example, as a contrastive or in-batch loss does.
    """
    if len(losses) < 2:
        return
    weights = _WEIGHTS[secret_order(len(losses)) % len(_WEIGHTS)].to(losses)
    plain = torch.autograd.grad(losses, outputs, torch.ones_like(losses), retain_graph=True, allow_unused=True)
    weighted = torch.autograd.grad(losses, outputs, weights, retain_graph=True, allow_unused=True)
    for straight, scaled in zip(plain, weighted, strict=True):
        if straight is None or scaled is None:
            continue
        layouts = _layouts(straight, scaled, weights, one_row_each)
        if not any(_scaled_by(*layout) for layout in layouts) and (straight.any() or scaled.any()):
            raise PrivacyError(
                "a loss depends on the output of another example, so one record would move the gradients of others; "
                "compute each loss from its own example (no in-batch negatives, no normalisation over the batch), and "
                "keep the losses in the order of the outputs' rows"
            )


def secret_order(b: int) -> Tensor:
    """The numbers from 0 to b - 1 in a random order that nobody can predict; torch's own generators are not used."""
    return torch.frombuffer(bytearray(os.urandom(8 * b)), dtype=torch.int64).argsort()


def _layouts(
    plain: Tensor, scaled: Tensor, weights: Tensor, one_row_each: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """What the elements are to be multiplied by, and both gradients, for each layout that the output may have.

    With two examples the layouts of an axis of length 4 are A A B B and A B A B. Where no axis is a multiple of the
    examples, as with sequences packed one after the other, the first axis is compared with the weight that its largest
    elements show, whichever example's that is.
    """
    b, weights, matched = len(weights), weights.to(plain.dtype), False
    for axis, length in enumerate(plain.shape[:1] if one_row_each else plain.shape):
        if length and length % b == 0 and (length == b or not one_row_each):
            matched, shape = True, [-1 if k == axis else 1 for k in range(plain.dim())]
            yield weights.repeat_interleave(length // b).view(shape), plain, scaled
            if length > b:
                yield weights.repeat(length // b).view(shape), plain, scaled
    if not matched and plain.dim() and not one_row_each:
        rows, scaled_rows = plain.reshape(len(plain), -1), scaled.reshape(len(plain), -1)
        largest = rows.nan_to_num(0, 0, 0).abs().argmax(1, keepdim=True)
        shown = scaled_rows.gather(1, largest) / rows.gather(1, largest)
        yield weights[(shown - weights).abs().argmin(1)].unsqueeze(1), rows, scaled_rows


def _scaled_by(factors: Tensor, plain: Tensor, scaled: Tensor) -> bool:
    """Whether the finite elements of the plain gradient were multiplied by these factors, compared row by row."""
    expected = plain * factors
    if torch.equal(expected, scaled):
        return True
    finite = plain.isfinite()
    size = plain.abs().masked_fill_(~finite, 0)
    other = [axis for axis in range(plain.dim()) if factors.shape[axis] == 1]
    rows = size.amax(other, keepdim=True) if other else size
    precision = torch.finfo(plain.dtype)
    share = _TOLERANCE if plain.device.type == "cpu" else max(_TOLERANCE, 2 * precision.eps)
    smallest = 8 * precision.tiny * precision.eps  # results below the normal numbers are rounded
    error = (scaled - expected).abs_()
    return bool(((error <= rows * share + smallest) | ~finite).all())
