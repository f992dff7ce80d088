"""The ways through the autograd graph, from the losses down to the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from noisette.errors import PrivacyError
from noisette.gradients.tape import Record


@dataclass(frozen=True)
class Paths:
    """What the way from the losses down to the parameters meets."""

    uncovered: list[str]  # names of trainable parameters reached by a way that no recorded use accounts for
    reached: set[Any]  # graph nodes of the uses that the losses depend on


def follow(losses: Tensor, record: Record, parameters: Mapping[str, Tensor]) -> Paths:
    """Walk the autograd graph from the losses to its leaves.

    At the output of a use the search for uncovered parameters goes on at its data arguments, so a parameter is met only
    where the tape did not see it at work.

    Raises:
        PrivacyError: a part of the model runs without a graph until the backward pass.
    """
    upstream: dict[Any, list[Any]] = {}
    for use in record.uses:
        for edge in use.edges:
            upstream.setdefault(edge.node, []).extend(use.upstream)
    names = {id(p): name for name, p in parameters.items()}
    uncovered: set[str] = set()
    seen: set[Any] = set()
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise PrivacyError(
                "torch.utils.checkpoint with use_reentrant=True hides the parameters inside of it; pass "
                "use_reentrant=False, which gives the same activations"
            )
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            uncovered.add(names[id(variable)])
        stack += upstream[node] if node in upstream else _children(node)
    return Paths(sorted(uncovered), upstream.keys() & seen)


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def above_others(losses: Tensor, nodes: set[Any]) -> set[Any]:
    """Those of these nodes below the losses from which the graph leads to another one of them."""
    above: set[Any] = set()
    leads: dict[Any, bool] = {}  # whether one of them lies at or below a node; false until its children are known
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node not in leads:
            leads[node] = False
            stack += [child for child in _children(node) if child not in leads]
            continue
        stack.pop()
        reaches = any(leads[child] for child in _children(node))
        leads[node] = reaches or node in nodes
        if reaches and node in nodes:
            above.add(node)
    return above
