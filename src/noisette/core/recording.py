"""What is recorded of a loss: uses of parameters, and weights derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

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
class Output:
    """A tensor that the root module returned, and the edge at which its gradient arrives."""

    tensor: Tensor
    edge: GradientEdge
    version: int  # of the tensor as it was returned


@dataclass(frozen=True)
class RootCall:
    """One call of the root module, with what it takes to repeat it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Mapping[int, Output]  # by position among the returned tensors; those at which a gradient can arrive
    autocast: Mapping[str, torch.dtype]  # device types that computed in lower precision, and its dtype
    silent: Callable[[], AbstractContextManager[None]]  # a context in which the tape records nothing
    prefix: str = ""  # of the parameters' names in this module


@dataclass(frozen=True)
class Recording:
    """What was recorded of a loss."""

    uses: tuple[Use, ...]
    derived: Mapping[int, DerivedWeight]  # by ``id`` of the derived tensor
    calls: tuple[RootCall, ...]

    @property
    def outputs(self) -> list[GradientEdge]:
        """The edges of what the root module returned."""
        return [output.edge for call in self.calls for output in call.outputs.values()]


@dataclass
class Draft:
    """A recording while it grows."""

    uses: list[Use] = field(default_factory=list)
    derived: dict[int, DerivedWeight] = field(default_factory=dict)
