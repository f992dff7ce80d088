"""The Gaussian release of sums of bounded sensitivity."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from noisette.core.forms import AT_LEAST_SINGLE
from noisette.core.loss import Loss, Microbatch
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.errors import PrivacyError, first_few, positive


@dataclass(frozen=True)
class BoundedSum:
    """A sum over examples before noise, and its sensitivity.

    Guarantee: adding or removing one example changes the joint vector of ``grads`` by at most ``bound`` in Euclidean
    norm, in real arithmetic; :data:`ROUNDING` covers what rounding adds. Until noise is added it is private data.
    """

    params: tuple[Tensor, ...]  # whose ``.grad`` receives the noised sum
    grads: tuple[Tensor, ...]  # the sum, one tensor for each of them
    bound: float  # the sensitivity of the sum
    share: float | None = None  # of the release's budget; ``None`` for an equal part of what the others leave
    name: str = "gradient"  # of the sum in the ledger


@runtime_checkable
class Stateful(Protocol):
    """A part of a bound with state that it derives from released values, such as an adaptive clipping norm."""

    def state(self) -> Mapping[str, float]:
        """The state, by name. It is public."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what :meth:`state` returned; a ValueError if a value is outside its domain."""


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

    def before_first_batch(self, columns: Sequence[Tensor] = ()) -> None:
        """Called before any record is read; records are rows of the columns, or come from elsewhere."""

    def begin_batch(self, still_to_come: float = 1.0, seed: int = 0) -> None:
        """Called before the first records of a batch are read; the work so far is still to come so many times, and
        ``seed`` is that of the random numbers that all records of the batch share, on whichever rank.
        """

    def end_batch(self) -> list[str]:
        """Called before the release: put back the buffers that were written since the batch began; their names."""
        ...

    def add(self, loss: Loss, microbatch: Microbatch, public: tuple[Tensor, ...]) -> None:
        """Add the bounded gradients of these examples, given the loss of one, to the pending sums, or none.

        ``public`` are other tensors that the loss uses, computed from no record but through released weights.
        """

    def accumulate_nothing(self) -> None:
        """Add nothing, where the ranks of a sharded model take a microbatch together and this one has no example."""

    def pop_sums(self) -> list[BoundedSum]:
        """Return the pending sums, zeros without examples; nothing is pending afterwards."""
        ...

    def after_step(self) -> None:
        """Called after the optimizer has updated the weights with released values."""

    def close(self) -> None:
        """Remove everything that was attached to the model."""


# A sum is released with the noise of a sensitivity that is larger by this part. Sums in single precision, added up in
# blocks of 256 examples and then in double precision, move by less than a tenth of it more than they do in real
# arithmetic, on any processor, for random examples and for those chosen to make rounding worst.
ROUNDING = 2**-13
# Between them noise and sum have all digits of single precision. Far below noise is zero, and the sum bare.
_SMALLEST_STD = 1e-30
_LARGEST_STD = 1e30


class Processes(Protocol):
    """The processes of a run, of which this one computes a share of each batch, until it is closed.

    An error in an ``unanimous`` context on one of them is raised on all; what it gives must be equal on all.
    """

    @property
    def size(self) -> int: ...
    def share(self, indices: np.ndarray) -> np.ndarray: ...
    def unanimous(self, phase: str) -> AbstractContextManager[dict[str, float]]: ...
    def close(self) -> None: ...


class NoisySums(Protocol):
    """Replaces sums by (the sum over all ``size`` processes) / divisor + noise of this standard deviation.

    ``sums`` are names, the parameter or the tensor of each sum, and the sums, which are overwritten. ``deviation`` is
    that of a step's noise in units of ``std``; not 1 where it is correlated over steps. ``written`` gives the gradient
    of a parameter in the form of this parameter, as for a shard.
    """

    @property
    def size(self) -> int: ...
    def release(self, sums: Sequence[tuple[str, Tensor, Tensor]], *, step: int, std: float, divisor: float) -> None: ...
    def deviation(self, step: int) -> float: ...
    def written(self, parameter: Tensor, gradient: Tensor) -> Tensor: ...


class OwnNoise:
    """Independent noise of one process, whose sums are complete."""

    size = 1

    def __init__(self, noise: GaussianNoise) -> None:
        self._noise = noise

    def release(self, sums: Sequence[tuple[str, Tensor, Tensor]], *, step: int, std: float, divisor: float) -> None:
        """Divide the sums and add noise, those of one type and device together."""
        alike: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        for name, _, g in sums:
            alike.setdefault((g.dtype, g.device), {})[name] = g
        for named in alike.values():
            self._noise.add_(named, step=step, std=std, divisor=divisor)

    def deviation(self, step: int) -> float:
        return 1.0

    def written(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return gradient


class GaussianRelease:
    """Adds noise to bounded sums and writes the results to ``.grad``; nothing else in noisette writes there.

    Args:
        key: secret key of the noise.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        expected_batch_size: the declared constant by which the sum is divided, whatever the size of the batch.
        noise: what draws with this key; independent noise of this process unless given.

    Guarantee: one call is one Gaussian mechanism of this noise multiplier, for any number of sums: a sum with the share
    s of the budget gets noise of standard deviation ``noise_multiplier * bound / sqrt(s)``, with the bound raised by
    :data:`ROUNDING`. The shares add up to one, so in units of the noise one example changes all sums together by at
    most 1 / noise_multiplier. With noise that is correlated over steps all calls together are the matrix mechanism of
    its factor C, in units of each call's noise.
    Source: Abadi et al. 2016, algorithm 1.
    """

    def __init__(
        self, key: SecretKey, noise_multiplier: float, expected_batch_size: float, noise: NoisySums | None = None
    ) -> None:
        positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
        self.noise_multiplier = float(noise_multiplier)
        self.expected_batch_size = float(expected_batch_size)
        self._noise: NoisySums = OwnNoise(GaussianNoise(key)) if noise is None else noise
        self._written: dict[int, Tensor | None] = {}  # what the last release left in ``.grad``, by id of the parameter
        # The deviation of the noise on each element of what the last release wrote, by id of its tensor.
        self.deviations: dict[int, float] = {}

    def __call__(self, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
        """Write (sum + noise) / expected batch size to the ``.grad`` of every parameter.

        The noise is added in place: the memory of the sums becomes that of the gradients, so no private value remains.
        Gradient hooks of the user see the noised gradient, once.

        Args:
            sums: the bounded sums of this batch.
            names: the name of each parameter, by ``id``, which selects its noise; others are named after their sum.
            step: number of the step; each number is used once with one key.

        Raises:
            ValueError: the noise would be out of the range of single precision, the shares do not add up to one, or two
                tensors have the same name, so they would get the same noise.
        """
        stds = self._deviations_of(sums)
        # Names of parameters do not start with a dot, so these cannot coincide with one.
        named = {id(p): names.get(id(p), f".{part.name}") for part in sums for p in part.params}
        tensors = sum(len(part.params) for part in sums)
        if len(set(named.values())) < tensors:
            different = len(set(named.values()))
            raise ValueError(f"{tensors} tensors have only {different} different names, some would share their noise")
        deviation = self._noise.deviation(step)
        self.deviations = {id(p): deviation * std for part, std in zip(sums, stds, strict=True) for p in part.params}
        self._written = {}
        for part, grads, std in zip(sums, _writable(sums, rounded=self._noise.size > 1), stds, strict=True):
            to_noise = [(named[id(p)], p, g) for p, g in zip(part.params, grads, strict=True)]
            self._noise.release(to_noise, step=step, std=std, divisor=self.expected_batch_size)
            for p, g in zip(part.params, grads, strict=True):
                gradient = self._noise.written(p, g.to(p.dtype))
                if id(p) in names:
                    gradient = _seen_by_hooks(p, gradient)
                p.grad = gradient
                after: Mapping[int, Any] | None = getattr(p, "_post_accumulate_grad_hooks", None)
                for hook in list(after.values()) if after and p.grad is not None else ():
                    hook(p)
                self._written[id(p)] = p.grad

    def _deviations_of(self, sums: Sequence[BoundedSum]) -> list[float]:
        """The standard deviation of the noise on each sum, after the division by the expected batch size."""
        stds = []
        for part, share in zip(sums, shares_of(sums), strict=True):
            std = self.noise_multiplier * part.bound * (1 + ROUNDING) / math.sqrt(share)
            if not 0 < std < math.inf:
                raise ValueError(f"expected a finite noise standard deviation above 0, got {std}")
            if not _SMALLEST_STD < std / self.expected_batch_size < _LARGEST_STD:
                raise ValueError(
                    f"noise of standard deviation {std:g} over an expected batch size of {self.expected_batch_size:g} "
                    "is out of range of single precision; multiply the losses and the bound with a constant"
                )
            stds.append(std / self.expected_batch_size)
        return stds

    def check_no_others(self, parameters: Mapping[str, Tensor]) -> None:
        """Check that ``.grad`` is what the last release wrote, zeros, or nothing: a step takes any for a noised one."""
        others = {name: p.grad for name, p in parameters.items() if p.grad is not self._written.get(id(p))}
        others = sorted(n for n, g in others.items() if g is not None and (g.layout is not torch.strided or g.any()))
        if others:
            raise PrivacyError(
                f".grad of {first_few(others)} holds a gradient that is not private: loss.backward() was called, or "
                ".grad was set. Call optimizer.zero_grad(); give one example's loss to run.accumulate(loss, *batch); "
                "in an Opacus loop take outputs of the whole model alone. A penalty on weights is weight_decay"
            )


def _seen_by_hooks(p: Tensor, gradient: Tensor) -> Tensor | None:
    """The noised gradient of a parameter after the user's gradient hooks.

    A parameter that was frozen during the run gets none, so that no optimizer moves it.
    """
    if isinstance(p, nn.Parameter) and not p.requires_grad:
        return None
    for hook in list(p._backward_hooks.values()) if p._backward_hooks else ():
        if (changed := hook(gradient)) is not None:
            gradient = changed
    return gradient


def _writable(sums: Sequence[BoundedSum], *, rounded: bool) -> list[list[Tensor]]:
    """The tensors of each sum: contiguous, in single precision at least, and no two in the same memory.

    Noise is added in place: of two tensors in one memory each would get the noise of both. With several ranks, whose
    sums, in double precision after several microbatches, are added up, they are ``rounded`` to that of parameters.
    """
    tensors: list[list[Tensor]] = []
    for part in sums:
        dtypes = [p.dtype if rounded else g.dtype for p, g in zip(part.params, part.grads, strict=True)]
        dtypes = [AT_LEAST_SINGLE.get(dtype, dtype) for dtype in dtypes]
        tensors.append([g.to(dtype).contiguous() for g, dtype in zip(part.grads, dtypes, strict=True)])
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


def shares_of(sums: Sequence[BoundedSum]) -> list[float]:
    """The share of the budget of each sum: its own, or an equal part of what the others leave; they add up to one."""
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


def noised(total: Tensor, noise_multiplier: float, key: SecretKey, name: str) -> Tensor:
    """The release of one sum whose sensitivity is one, by its name in the ledger, which is charged before."""
    found = torch.empty_like(total)
    release = GaussianRelease(key, noise_multiplier, expected_batch_size=1)
    release([BoundedSum((found,), (total,), bound=1.0, name=name)], {}, step=0)
    assert found.grad is not None
    return found.grad


def digest_of(sums: Sequence[BoundedSum]) -> float:
    """A number that differs, almost surely, where bounds, shares, names or the kinds of parameters of sums differ."""
    facts = [
        (part.name, part.bound, part.share, [(tuple(p.shape), str(p.dtype), p.requires_grad) for p in part.params])
        for part in sums
    ]
    return float(int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:6]))
