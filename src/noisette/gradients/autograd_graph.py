"""One walk over the autograd graph, from the losses down to the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

from noisette.errors import PrivacyError
from noisette.gradients.tape import Use


@dataclass(frozen=True)
class LossGraph:
    """What the losses depend on."""

    uncovered: tuple[str, ...]  # names of trainable parameters that the losses reach otherwise than through a use
    reached: frozenset[Node]  # output nodes of the uses that the losses depend on
    above: frozenset[Node]  # those of the reached nodes from which the graph leads to another reached one


def search(losses: Tensor, uses: Sequence[Use], parameters: Mapping[str, Tensor]) -> LossGraph:
    """Walk the autograd graph from the losses to its leaves.

    At the output of a use the walk continues at the use's data arguments. So it meets a parameter only where the losses
    depend on it otherwise than through a recorded use.

    For the losses of ``y = relu(x @ A) @ B`` with uses ``@ A`` and ``@ B`` the walk meets the output node of ``@ B``,
    then, by its data argument, relu and the output node of ``@ A``, then ``x``. Both are reached, ``@ B`` is above
    ``@ A``, and no parameter is met. With ``losses = y.sum(1) + A.square().sum()`` it also meets A: uncovered.

    Raises:
        PrivacyError: a part of the model has no graph until the backward pass.
    """
    upstream: dict[Node, list[Node]] = {}
    for use in uses:
        for edge in use.edges:
            upstream.setdefault(edge.node, []).extend(use.upstream)
    names = {id(p): name for name, p in parameters.items()}
    uncovered: set[str] = set()
    above: set[Node] = set()
    children: dict[Node, list[Node]] = {}  # of the nodes met so far
    leads: dict[Node, bool] = {}  # whether a use's node lies at or below a node; known once its children are done
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node not in children:
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise PrivacyError(
                    "torch.utils.checkpoint with use_reentrant=True hides the parameters inside of it; pass "
                    "use_reentrant=False, which gives the same activations"
                )
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in names:
                uncovered.add(names[id(variable)])
            below = upstream[node] if node in upstream else [child for child, _ in node.next_functions if child]
            children[node] = below
            stack += [child for child in below if child not in children]
            continue
        stack.pop()
        leads_on = False
        for child in children[node]:
            leads_on |= leads.get(child, False)
        leads[node] = leads_on or node in upstream
        if leads_on and node in upstream:
            above.add(node)
    return LossGraph(tuple(sorted(uncovered)), frozenset(upstream.keys() & children.keys()), frozenset(above))
