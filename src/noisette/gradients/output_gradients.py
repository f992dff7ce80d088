"""One backward pass over activations alone, which shows each use the gradient of its output and forms no weight's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.autograd_graph import above_others
from noisette.gradients.tape import Use

Visitor = Callable[[int, Any], None]  # number of the use; its output's gradient, a tuple where it has several outputs


def visit_output_gradients(
    losses: Tensor,
    cotangent: Tensor,
    uses: Mapping[int, Use],
    visit: Visitor,
    *,
    retain_graph: bool,
) -> None:
    """Call ``visit`` for each use that the losses depend on, as soon as its output's gradient is complete.

    A gradient lives no longer than its visit, so no two layers' output gradients need memory at once. ``visit`` may
    take its use out of ``uses``.

    Args:
        losses: one value per example.
        cotangent: the gradient to begin with, in the shape of the losses.
        uses: what was recorded, by number.
        visit: what to do with a use's output gradient.
        retain_graph: another backward pass will follow.
    """
    # A pass to the lowest uses goes through all others; these are met on the way, by a hook on their node.
    passed = above_others(losses, {edge.node for use in uses.values() for edge in use.edges})
    lowest: list[int] = []
    handles = []
    joint: dict[int, list[Tensor | None]] = {}
    for k, use in uses.items():
        if use.several:
            joint[k] = [None] * len(use.outputs)
        elif use.edges[0].node in passed:
            handles.append(_register(use.edges[0], lambda dy, k=k: visit(k, dy)))
        else:
            lowest.append(k)
    targets = [(k, None, uses[k].edges[0]) for k in lowest]
    targets += [(k, place, edge) for k in joint for place, edge in enumerate(uses[k].outputs) if edge is not None]
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
    for (k, place, _), dy in zip(targets, arriving, strict=True):
        if place is not None:
            joint[k][place] = dy
        elif dy is not None:
            visit(k, dy)
    for k, gradients in joint.items():
        if any(dy is not None for dy in gradients):
            visit(k, tuple(gradients))


def _register(edge: torch.autograd.graph.GradientEdge, see: Callable[[Tensor], None]) -> Any:
    def hook(gradients: Sequence[Tensor | None]) -> None:
        if (dy := gradients[edge.output_nr]) is not None:
            see(dy)

    return edge.node.register_prehook(hook)
