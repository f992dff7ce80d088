"""Sums of bounded sensitivity, and protocols of the objects that compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True)
class BoundedSum:
    """A sum over examples before noise, and its sensitivity.

    Guarantee: adding or removing one example changes the joint vector of ``grads`` by at most ``bound`` in Euclidean
    norm. The sum is private data until a release has added noise to it.

    Args:
        params: tensors whose ``.grad`` receives the noised sum.
        grads: the sum, one tensor for each of ``params``.
        bound: the sensitivity of the sum.
        share: this sum's share of the release's budget; ``None`` for an equal part of what the others leave.
        name: the name of the sum in the ledger.
    """

    params: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    bound: float
    share: float | None = None
    name: str = "gradient"


@runtime_checkable
class Stateful(Protocol):
    """A part of a bound with state that it derives from released values, such as an adaptive clipping norm."""

    def state(self) -> Mapping[str, float]:
        """The state, by name. It is public."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError: a value is outside its domain.
        """
        ...


@runtime_checkable
class PreparesBatch(Protocol):
    """A bound that moves the weights before the first microbatch of a batch."""

    def before_batch(self) -> None:
        """Called before the first records of a batch are read."""
        ...


@runtime_checkable
class DerivedBound(Protocol):
    """A bound derived from the network and its weights, which a search for a worst-case example can test."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        ...

    def score_gradient_bound(self) -> float:
        """Bound on one example's gradient with respect to its scores."""
        ...

    def sensitivities(self) -> Mapping[str, float]:
        """Bound on one example's gradient of each parameter, by name."""
        ...


@runtime_checkable
class TakesDeviations(Protocol):
    """An optimizer that uses the deviation of the noise on each gradient, which is public."""

    def take_deviations(self, deviations: Mapping[int, float]) -> None:
        """Take the deviation of the noise on each element of ``.grad``, by ``id`` of the parameter."""
        ...


class GradientBound(Stateful, Protocol):
    """Bounds the sensitivity of the gradient sum of one batch."""

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters it covers, by name."""
        ...

    def before_first_batch(self) -> None:
        """Called before any record is read."""
        ...

    def accumulate(self, loss: Callable[..., Tensor], *batch: Any, public: Iterable[Tensor], **keywords: Any) -> None:
        """Add the bounded gradients of these examples, given the loss of one example, to the pending sums.

        An error does not change the pending sums.
        """
        ...

    def accumulate_nothing(self) -> None:
        """Add nothing, where the ranks of a sharded model take a microbatch together and this one has no example."""
        ...

    def backward(self, losses: Tensor) -> None:
        """Add the bounded gradients of these examples, one loss each, to the pending sums.

        An error does not change the pending sums.
        """
        ...

    def pop_sums(self) -> list[BoundedSum]:
        """Return the pending sums, zeros without examples; nothing is pending afterwards."""
        ...

    def set_aside(self) -> AbstractContextManager[None]:
        """A context in which nothing is pending; what was is there again afterwards."""
        ...

    def after_step(self) -> None:
        """Called after the optimizer has updated the weights with released values."""
        ...

    def close(self) -> None:
        """Remove everything that was attached to the model."""
        ...
