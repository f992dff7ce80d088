"""What every way of bounding one example hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True)
class BoundedSum:
    """A sum over examples before noise, and the most one example can move it.

    Guarantee: adding or removing one example changes the joint vector of ``grads`` by at most ``bound`` in Euclidean
    norm. It is private data until ``release`` has noised it.

    Args:
        params: where the noised values will be found, in ``.grad``.
        grads: the sum.
        bound: the most one example can move it.
        share: the part of a release's budget that goes to this sum; ``None`` for an equal part of what others leave.
        name: what it is, in the ledger.
    """

    params: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    bound: float
    share: float | None = None
    name: str = "gradient"


@runtime_checkable
class Stateful(Protocol):
    """A part of a bound that learns from released values, such as a clipping norm that follows the gradients."""

    def state(self) -> Mapping[str, float]:
        """What it has learned, by name. It is public."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from what :meth:`state` gave.

        Raises:
            ValueError: a value is outside its domain.
        """
        ...


@runtime_checkable
class DerivedBound(Protocol):
    """A bound that follows from the network and its weights, so that an example may be sought that exceeds it."""

    def score_limit(self) -> float:
        """Bound on one example's gradient at the scores."""
        ...

    def sensitivities(self) -> Mapping[str, float]:
        """The most one example adds to the gradient of each parameter, by name."""
        ...


class GradientBound(Stateful, Protocol):
    """Bounds what one example can do to the gradient sum of one logical batch."""

    @property
    def model(self) -> nn.Module:
        """The user's own module."""
        ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters it covers, by name."""
        ...

    def backward(self, losses: Tensor) -> None:
        """Add the bounded gradients of these examples, one loss each, to what is pending.

        An error leaves what is pending as it was.
        """
        ...

    def pop_sums(self) -> list[BoundedSum]:
        """Hand over what is pending and start anew; zeros where there was no example."""
        ...

    def after_step(self) -> None:
        """The optimizer has moved the weights with released values."""
        ...

    def close(self) -> None:
        """Leave the model as it was."""
        ...
