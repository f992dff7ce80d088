"""What is recorded of a loss: uses of parameters, and weights derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from noisette.core.loss import Loss, Microbatch
from noisette.core.state import ModelBuffers

Operation = Callable[..., Any]


@dataclass(frozen=True)
class Use:
    """One operation on weights and data."""

    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    weights: tuple[Tensor, ...]  # each once
    outputs: tuple[GradientEdge | None, ...]  # None where no gradient can arrive
    edges: tuple[GradientEdge, ...]  # the outputs at which a gradient can arrive
    several: bool  # the operation returned more than one value
    shape: tuple[int, ...]  # of its first output
    dtype: torch.dtype  # of its first output
    upstream: tuple[Node, ...]  # graph nodes of the data arguments, where the rest of the model continues
    versions: tuple[tuple[Tensor, int], ...]  # the data arguments and their version counters at the call

    # Its arguments are computed again in the backward pass, for one pass alone.
    is_recomputed: ClassVar[bool] = False

    def whole(self) -> Use:
        """The use with its arguments, also where they were not kept."""
        return self

    def check_unchanged(self) -> None:
        """Check that the data arguments still hold the values of the call.

        Raises:
            RuntimeError: an in-place operation has overwritten one since.
        """
        for tensor, version in self.versions:
            if tensor._version != version:
                raise RuntimeError(
                    f"an input of shape {tuple(tensor.shape)} of {self.operation.__name__} was changed in place after "
                    "its use, so its gradient is lost; use the out-of-place form of the operation that follows"
                )


@dataclass(frozen=True)
class DerivedWeight:
    """A tensor computed from trainable parameters and constants alone, such as a slice or a masked weight."""

    tensor: Tensor
    parents: tuple[Tensor, ...]  # the trainable parameters it comes from
    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class LossCall:
    """The loss that was recorded and its arguments, for engines that compute it for single examples."""

    loss: Loss
    model: nn.Module
    batch: Microbatch
    buffers: ModelBuffers
    autocast: Mapping[str, torch.dtype]  # device types that computed in lower precision, and its dtype


@dataclass(frozen=True)
class Recording:
    """What was recorded of a loss."""

    uses: list[Use]  # the last backward pass takes them out, so that their arguments are freed as it goes
    derived: Mapping[int, DerivedWeight]  # by ``id`` of the derived tensor
    call: LossCall | None = None  # None for a call of the model in a loop that computes losses itself


@dataclass
class Draft:
    """A recording while it grows."""

    uses: list[Use] = field(default_factory=list)
    derived: dict[int, DerivedWeight] = field(default_factory=dict)
