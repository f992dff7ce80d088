"""The Gaussian release of sums of bounded sensitivity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.core.keys import SecretKey
from noisette.core.noise import GaussianNoise, Source, never
from noisette.core.tiles import Window
from noisette.mechanisms.banded_factor import deviations_of
from noisette.mechanisms.banded_noise import BandedNoise
from noisette.mechanisms.joint_sums import JointSums, window_of
from noisette.ranks import Alone, AnyRanks
from noisette.ranks.shards import from_local, is_sharded


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


# Between them noise and sum have all the digits of single precision. Below, noise would lose digits and finally be
# zero, and the sum would be released as it is.
_SMALLEST_STD = 1e-30
_LARGEST_STD = 1e30


class GaussianRelease:
    """Adds noise to bounded sums and writes the results to ``.grad``; a private run writes no other values there.

    Args:
        key: secret key of the noise.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        expected_batch_size: the declared constant by which the sum is divided, whatever the size of the batch.
        compiled: where quicker noise comes from, as for :class:`~noisette.core.noise.GaussianNoise`.
        ranks: the processes whose sums are added up before the noise, which all of them draw alike.
        correlation: the coefficients by which the noise of a step takes back that of the steps before it, as of
            :class:`~noisette.mechanisms.banded_noise.BandedNoise`; 1 alone is independent noise.

    Guarantee: one call is one Gaussian mechanism of this noise multiplier, for any number of sums: a sum with the share
    s of the budget gets noise of standard deviation ``noise_multiplier * bound / sqrt(s)``. The shares add up to one,
    so in units of the noise one example changes all sums together by at most 1 / noise_multiplier. With a correlation
    all calls together are the matrix mechanism of its C, in units of each call's noise.
    Source: Abadi et al. 2016, algorithm 1.
    """

    def __init__(
        self,
        key: SecretKey,
        noise_multiplier: float,
        expected_batch_size: float,
        compiled: Source = never,
        ranks: AnyRanks = Alone(),  # noqa: B008 - it has no state
        correlation: Sequence[float] = (1.0,),
    ) -> None:
        checks.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
        self.noise_multiplier = float(noise_multiplier)
        self.expected_batch_size = float(expected_batch_size)
        independent = GaussianNoise(key, compiled)
        alone = tuple(correlation) == (1.0,)
        self._joint = JointSums(independent if alone else BandedNoise(independent, correlation), ranks)
        self._per_independent = np.ones(1) if alone else deviations_of(tuple(correlation))
        self._steps = range(0)  # since the correlation began
        # The deviation of the noise on each element of what the last release wrote, by id of its tensor.
        self.deviations: dict[int, float] = {}

    def __call__(self, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
        """Write (sum + noise) / expected batch size to the ``.grad`` of every parameter.

        The noise is added in place: the memory of the sums becomes that of the gradients, so no private value remains.

        Args:
            sums: the bounded sums of this batch.
            names: the name of each parameter, by ``id``; it selects the parameter's noise. A tensor without an entry is
                named after its sum.
            step: number of the step; each number is used once with one key.

        Raises:
            ValueError: a bound or a share gives no noise above zero within the range of single precision, the shares
                do not add up to one, or two tensors have the same name, so they would get the same noise.
        """
        shares = shares_of(sums)
        stds = [self.noise_multiplier * part.bound / math.sqrt(share) for part, share in zip(sums, shares, strict=True)]
        for std in stds:
            if not 0 < std < math.inf:
                raise ValueError(f"expected a finite noise standard deviation above 0, got {std}")
            if not _SMALLEST_STD < std / self.expected_batch_size < _LARGEST_STD:
                raise ValueError(
                    f"a noise standard deviation of {std:g} over an expected batch size of "
                    f"{self.expected_batch_size:g} is out of range of single precision; multiply the losses and the "
                    "bound with a constant"
                )
        # Names of parameters do not start with a dot, so these cannot coincide with one.
        named = {id(p): names.get(id(p), f".{part.name}") for part in sums for p in part.params}
        tensors = sum(len(part.params) for part in sums)
        if len(set(named.values())) < tensors:
            raise ValueError(
                f"{tensors} tensors have only {len(set(named.values()))} different names, some would share their noise"
            )
        self._steps = range(self._steps.start if step == self._steps.stop else step, step + 1)
        per_independent = float(self._per_independent[min(len(self._steps), len(self._per_independent)) - 1])
        self.deviations = {
            id(p): per_independent * std / self.expected_batch_size
            for part, std in zip(sums, stds, strict=True)
            for p in part.params
        }
        for part, grads, std in zip(sums, _writable(sums, rounded=self._joint.size > 1), stds, strict=True):
            self._release(part, grads, named, std / self.expected_batch_size, step)

    def _release(
        self, bounded: BoundedSum, grads: Sequence[Tensor], names: Mapping[int, str], std: float, step: int
    ) -> None:
        """Write one noised sum to ``.grad``.

        Args:
            bounded: the sum.
            grads: its tensors, to be overwritten.
            names: the name of each of its tensors, by ``id``.
            std: standard deviation of the noise, after the division by the expected batch size.
            step: number of the step.
        """
        groups: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        parts: dict[tuple[torch.dtype, torch.device], dict[str, tuple[Tensor, Window]]] = {}
        sharded = [is_sharded(p) for p in bounded.params]
        for p, g, is_part in zip(bounded.params, grads, sharded, strict=True):
            if is_part:
                parts.setdefault((g.dtype, g.device), {})[names[id(p)]] = g, window_of(p)
            else:
                groups.setdefault((g.dtype, g.device), {})[names[id(p)]] = g
        for group in groups.values():
            self._joint.release_(group, step=step, std=std, divisor=self.expected_batch_size)
        for held in parts.values():  # added up over the ranks when they were formed
            self._joint.release_parts_(held, step=step, std=std, divisor=self.expected_batch_size)
        for p, g, is_part in zip(bounded.params, grads, sharded, strict=True):
            p.grad = from_local(g.to(p.dtype), p) if is_part else g.to(p.dtype)


def _writable(sums: Sequence[BoundedSum], *, rounded: bool) -> list[list[Tensor]]:
    """The tensors of each sum: contiguous, in single precision at least, and no two in the same memory.

    Noise is added in place. Whoever computed the sums may have returned one memory for two tensors that are equal; the
    one would get the noise of both, and so would the other.

    Args:
        sums: the sums.
        rounded: whether they are rounded to the precision of their parameters. Microbatches are added up in double
            precision, if there are several, and their number is not the same on all ranks, whose sums are added up.
    """
    tensors = [
        [g.to(_at_least_single(p.dtype if rounded else g.dtype)).contiguous() for p, g in pairs]
        for pairs in (zip(part.params, part.grads, strict=True) for part in sums)
    ]
    begins = sorted(
        (g.data_ptr(), g.data_ptr() + g.nbytes, k, n) for k, part in enumerate(tensors) for n, g in enumerate(part)
    )
    end = 0
    for first, last, k, n in begins:
        if first < end:
            tensors[k][n] = tensors[k][n].clone()
        else:
            end = last
    return tensors


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Single precision at least, because noise is never added in half precision."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def shares_of(sums: Sequence[BoundedSum]) -> list[float]:
    """The share of the budget of each sum: its own, or an equal part of what the others leave.

    Raises:
        ValueError: the shares do not add up to one, or one is not above zero.
    """
    asked = sum(part.share for part in sums if part.share is not None)
    others = sum(part.share is None for part in sums)
    shares = [(1 - asked) / others if part.share is None else part.share for part in sums]
    if sums and not (all(share > 0 for share in shares) and math.isclose(sum(shares), 1, rel_tol=1e-12)):
        raise ValueError(f"the shares of a release must be above zero and add up to one, got {shares}")
    return shares


def parts_of(sums: Sequence[BoundedSum]) -> tuple[tuple[str, float], ...]:
    """The name and the share of each sum of a release; empty if the release is the gradient alone."""
    parts: dict[str, float] = {}
    for part, share in zip(sums, shares_of(sums), strict=True):
        parts[part.name] = parts.get(part.name, 0.0) + share
    return tuple(parts.items()) if len(parts) > 1 else ()


def mark_of(sums: Sequence[BoundedSum]) -> float:
    """A number that differs, almost surely, where bounds, shares, names or the kinds of parameters of sums differ."""
    facts = [
        (part.name, part.bound, part.share, [(tuple(p.shape), str(p.dtype), p.requires_grad) for p in part.params])
        for part in sums
    ]
    return float(int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:6]))
