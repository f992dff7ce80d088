"""The autograd graph below the losses: one walk that finds what the losses depend on, one pass of output gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from noisette.errors import PrivacyError
from noisette.gradients.recording import Use

Visitor = Callable[[int, Any], None]  # number of the use; its output's gradient, a tuple where it has several outputs


class Covering(Protocol):
    """A place of the graph that accounts for the parameters at it, such as a :class:`.recording.Use`."""

    @property
    def edges(self) -> Sequence[GradientEdge]:
        """Its outputs at which a gradient can arrive."""
        ...

    @property
    def upstream(self) -> Sequence[Node]:
        """Where the graph continues below it."""
        ...


@dataclass(frozen=True)
class LossGraph:
    """What the losses depend on."""

    uncovered: tuple[str, ...]  # names of trainable parameters that the losses reach otherwise than through a use
    reached: frozenset[Node]  # output nodes of the uses that the losses depend on
    above: frozenset[Node]  # those of the reached nodes from which the graph leads to another reached one
    custom: bool  # a function written in Python or a module's backward hook lies on the way to a leaf


def search(losses: Tensor, uses: Sequence[Covering], parameters: Mapping[str, Tensor]) -> LossGraph:
    """Walk the autograd graph from the losses to its leaves, each node once.

    Which uses lie above others is a question about gradients, so it follows the edges of the graph. Whether a parameter
    is covered is a question about the tape: at the output of a use the search for uncovered parameters continues at
    the use's data arguments, so that it meets a parameter only where the losses depend on it otherwise.

    For the losses of ``y = relu(x @ A) @ B`` with uses ``@ A`` and ``@ B`` the walk meets the output node of ``@ B``,
    relu, the output node of ``@ A``, and the leaves A and B. Both uses are reached, ``@ B`` is above ``@ A``, and no
    parameter is uncovered: A and B lie behind uses. With ``losses = y.sum(1) + A.square().sum()`` A is uncovered.

    Raises:
        PrivacyError: a part of the model has no graph until the backward pass.
    """
    upstream: dict[Node, list[Node]] = {}
    for use in uses:
        for edge in use.edges:
            upstream.setdefault(edge.node, []).extend(use.upstream)
    above: set[Node] = set()
    children: dict[Node, list[Node]] = {}  # of the nodes met so far
    custom = False
    leads: dict[Node, bool] = {}  # whether a use's node lies at or below a node; in the order in which nodes are done
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node not in children:
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise PrivacyError(
                    "torch.utils.checkpoint with use_reentrant=True hides the parameters inside of it; pass "
                    "use_reentrant=False, which gives the same activations"
                )
            custom |= isinstance(node, BackwardCFunction) and not _is_own(node)
            children[node] = [child for child, _ in node.next_functions if child is not None]
            stack += [child for child in children[node] if child not in children]
            continue
        stack.pop()
        if node in leads:
            continue
        leads_on = False
        for child in children[node]:
            leads_on |= leads[child]
        leads[node] = leads_on or node in upstream
        if leads_on and node in upstream:
            above.add(node)
    names = {id(p): name for name, p in parameters.items()}
    uncovered: set[str] = set()
    exposed = {losses.grad_fn}  # nodes on a path that no use accounts for, or at the output or a data argument of a use
    for node in reversed(leads):  # each node before its children
        if node in exposed:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in names:
                uncovered.add(names[id(variable)])
            exposed.update(upstream[node] if node in upstream else children[node])
    return LossGraph(tuple(sorted(uncovered)), frozenset(upstream.keys() & exposed), frozenset(above), custom)


def _is_own(node: BackwardCFunction) -> bool:
    """Whether the node is of a function of this library, whose backward passes are linear."""
    return getattr(type(node), "_forward_cls", node).__module__.startswith("noisette.")


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

    One backward pass over activations; no weight gradient is computed.

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
