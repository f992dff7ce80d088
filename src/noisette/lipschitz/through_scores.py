"""The scores as the one way by which losses may depend on the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from noisette.core.backward import search
from noisette.errors import PrivacyError


@dataclass(frozen=True)
class _AtScores:
    """The scores as the place that accounts for all parameters below."""

    edges: tuple[GradientEdge]
    upstream: tuple[Node, ...] = ()


def check_only_through_scores(losses: Tensor, scores: GradientEdge, parameters: Mapping[str, Tensor]) -> None:
    """Check that the losses depend on the parameters only through the scores of the last call.

    Raises:
        PrivacyError: a parameter is reached another way, which the bound does not cover, or the scores are not reached.
    """
    graph = search(losses, [_AtScores((scores,))], parameters)
    if graph.uncovered:
        raise PrivacyError(
            f"the losses depend on {', '.join(graph.uncovered)} other than through the scores of the model's last "
            "call: compute them only from these scores; put penalties on the weights into the optimizer (weight_decay)"
        )
    if not graph.reached:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
