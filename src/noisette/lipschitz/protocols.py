"""What is known of every example at a place of a network, and what a module says about its own part of the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from torch import Tensor, nn


@dataclass(frozen=True)
class NormBound:
    """The tensor of any one example at a place of a network: how long it can be at most, and its shape.

    Args:
        norm: bound on the Euclidean norm of all its numbers; infinite where nothing is known.
        shape: without the batch axis.
    """

    norm: float
    shape: tuple[int, ...]


Sensitivities = Mapping[Tensor, float]  # parameter -> the most one example adds to its gradient, in Euclidean norm


class Bounded(Protocol):
    """A module that can say how far its outputs and its gradients reach, for every input within a reach."""

    def bound_forward(self, x: NormBound) -> NormBound:
        """The reach of the output.

        Raises:
            ValueError: the module cannot take an input of this shape.
        """
        ...

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        """Bounds on one example's gradients where its gradient at the output has a norm of at most ``g``.

        Returns:
            A bound on its gradient at the input, and one for each parameter of the module.
        """
        ...


class Projection(Protocol):
    """A map onto a set of matrices, with a certificate of how far each of them can stretch a vector."""

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest, or nearly nearest, matrices of the set, shape (k, n, m), and for each a spectral norm, (k,).

        Guarantee: the norms, in double precision, are upper bounds of the true ones.
        """
        ...


class Constrained(Protocol):
    """A module whose parameter is kept inside a set. ``projection`` objects that are equal project the same way."""

    projection: Projection

    def parameters(self) -> Iterator[nn.Parameter]:
        """The constrained parameter, and others if there are any."""
        ...

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m): a view that writes through."""
        ...

    def certified(self, norms: Tensor) -> None:
        """Take note of the spectral norms of its matrices, shape (k,), as the projection certified them."""
        ...


# An isinstance of a protocol would take longer than the bounds themselves: these are asked in every step.


def is_bounded(module: nn.Module) -> TypeGuard[Bounded]:
    """Whether the module states its own bounds."""
    return hasattr(module, "bound_forward") and hasattr(module, "bound_backward")


def is_constrained(module: nn.Module) -> TypeGuard[Constrained]:
    """Whether a parameter of the module is kept inside a set."""
    return hasattr(module, "projection") and hasattr(module, "matrices") and hasattr(module, "certified")
