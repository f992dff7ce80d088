"""One backward pass over activations that shows each use the gradient at its output and computes no weight gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from noisette.gradients.autograd_graph import LossGraph
from noisette.gradients.tape import Use

Visitor = Callable[[int, Any], None]  # number of the use; its output's gradient, a tuple where it has several outputs


def visit_output_gradients(
    losses: Tensor,
    cotangent: Tensor,
    uses: Mapping[int, Use],
    graph: LossGraph,
    visit: Visitor,
    *,
    retain_graph: bool,
) -> None:
    """Call ``visit`` for each use that the losses depend on, as soon as its output's gradient is complete.

    A gradient is dropped after its visit, so the gradients of two layers need no memory at the same time. ``visit`` may
    remove its use from ``uses``.

    The pass ends at the lowest uses, those with no other use below them, and returns their gradients. It goes through
    all others on its way, where a hook on their output node calls ``visit``.

    Args:
        losses: one value per example, shape (b,).
        cotangent: the gradient of the losses, shape (b,).
        uses: every recorded use, by number.
        graph: what the losses depend on.
        visit: called with the number of a use and the gradient at its output.
        retain_graph: whether another backward pass will follow.
    """
    targets: list[tuple[int, int | None, GradientEdge]] = []  # number of the use, output if it has several, edge
    joint: dict[int, list[Tensor | None]] = {}
    handles: list[Any] = []
    for k, use in uses.items():
        if use.several:
            joint[k] = [None] * len(use.outputs)
            targets += [(k, output, edge) for output, edge in enumerate(use.outputs) if edge is not None]
        elif (edge := use.edges[0]).node in graph.above:
            handles.append(edge.node.register_prehook(partial(_visit_on_arrival, visit, k, edge.output_nr)))
        else:
            targets.append((k, None, edge))
    try:
        arriving = torch.autograd.grad(
            losses,
            [edge for _, _, edge in targets],
            grad_outputs=cotangent,
            allow_unused=True,
            retain_graph=retain_graph,
        )
    finally:
        for handle in handles:
            handle.remove()
    for (k, output, _), dy in zip(targets, arriving, strict=True):
        if output is not None:
            joint[k][output] = dy
        elif dy is not None:
            visit(k, dy)
    for k, gradients in joint.items():
        if any(dy is not None for dy in gradients):
            visit(k, tuple(gradients))


def _visit_on_arrival(visit: Visitor, k: int, output: int, gradients: Sequence[Tensor | None]) -> None:
    """A hook on the output node of use ``k``: ``gradients`` has one entry for each output of that node."""
    if (dy := gradients[output]) is not None:
        visit(k, dy)
