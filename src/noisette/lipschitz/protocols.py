"""Protocols of Lipschitz layers: bounds that a module states, and constraints on its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from torch import Tensor, nn


@dataclass(frozen=True)
class NormBound:
    """A bound on the tensor of any one example at one place of a network.

    Args:
        norm: bound on its Euclidean norm over all elements; infinite if none is known.
        shape: its shape, without the batch axis.
    """

    norm: float
    shape: tuple[int, ...]


Sensitivities = Mapping[Tensor, float]  # parameter -> bound on the norm of one example's gradient


class Bounded(Protocol):
    """A module that states bounds on its outputs and gradients, for every input within a norm bound."""

    def bound_forward(self, x: NormBound) -> NormBound:
        """Bound on the output.

        Raises:
            ValueError: the module cannot take an input of this shape.
        """
        ...

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        """Bounds on one example's gradients, if its gradient with respect to the output has a norm of at most ``g``.

        Returns:
            A bound on its gradient with respect to the input, and one for each parameter of the module.
        """
        ...


class Projection(Protocol):
    """A map onto a set of matrices that certifies the spectral norm of each result."""

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest, or nearly nearest, matrices of the set, shape (k, n, m), and their norm bounds, shape (k,).

        Guarantee: the bounds, in double precision, are upper bounds of the true spectral norms.
        """
        ...


class Constrained(Protocol):
    """A module with a parameter that is constrained to a set. Equal ``projection`` objects project the same way."""

    projection: Projection

    def parameters(self) -> Iterator[nn.Parameter]:
        """The constrained parameter, and others if there are any."""
        ...

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m): a view, so writes change the parameter."""
        ...

    def set_certified_norms(self, norms: Tensor) -> None:
        """Store the spectral norms of the matrices, shape (k,), as certified by the projection."""
        ...


# Attribute tests, because an isinstance check of a protocol would take longer than the bounds themselves in each step.


def is_bounded(module: nn.Module) -> TypeGuard[Bounded]:
    """Whether the module states its own bounds."""
    return hasattr(module, "bound_forward") and hasattr(module, "bound_backward")


def is_constrained(module: nn.Module) -> TypeGuard[Constrained]:
    """Whether a parameter of the module is constrained to a set."""
    return hasattr(module, "projection") and hasattr(module, "matrices") and hasattr(module, "set_certified_norms")
