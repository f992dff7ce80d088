"""The only place where a private value becomes public: noise of the right size, and division by a declared constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette._internal import checks
from noisette._internal.keystream import SecretKey
from noisette.mechanisms.bounded_sum import BoundedSum
from noisette.mechanisms.gaussian_noise import GaussianNoise


class GaussianRelease:
    """Noises bounded sums and writes them to ``.grad``, the only values ever found there.

    Args:
        key: secret source of the noise.
        noise_multiplier: standard deviation of the noise in units of the bound.
        expected_batch_size: the declared constant that the sum is divided by, whatever the batch held.

    Guarantee: one call is one Gaussian mechanism of this noise multiplier, however many sums it is given: a sum with
    the share s of the budget gets noise of ``noise_multiplier * bound / sqrt(s)``. Shares add up to one, so in units of
    its noise one example moves all sums together by at most 1 / noise_multiplier.
    Source: Abadi et al. 2016, algorithm 1.
    """

    def __init__(self, key: SecretKey, noise_multiplier: float, expected_batch_size: float) -> None:
        checks.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
        self.noise_multiplier = float(noise_multiplier)
        self.expected_batch_size = float(expected_batch_size)
        self._noise = GaussianNoise(key)

    def __call__(self, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
        """Write (sum + noise) / expected batch size to the ``.grad`` of every parameter.

        The sums are used up: their memory becomes that of the noised gradients, and no private value stays behind.

        Args:
            sums: what the bound handed over for this logical batch.
            names: the name of each parameter, by ``id``; it selects the parameter's noise. What is no parameter goes by
                the name of its sum.
            step: number of the logical step; each number is used once in the life of the key.

        Raises:
            ValueError: a bound or a share that would give no noise, shares that do not add up to one, or two tensors of
                one name, which would get the same noise.
        """
        shares = shares_of(sums)
        deviations = [
            self.noise_multiplier * part.bound / math.sqrt(share) for part, share in zip(sums, shares, strict=True)
        ]
        for std in deviations:
            if not 0 < std < math.inf:
                raise ValueError(f"expected a finite noise standard deviation above 0, got {std}")
        # No parameter's name begins with a dot.
        named = {id(p): names.get(id(p), f".{part.name}") for part in sums for p in part.params}
        tensors = sum(len(part.params) for part in sums)
        if len(set(named.values())) < tensors:
            raise ValueError(f"{tensors} tensors have {len(set(named.values()))} names: each needs noise of its own")
        for part, std in zip(sums, deviations, strict=True):
            self._release(part, named, std / self.expected_batch_size, step)

    def _release(self, bounded: BoundedSum, names: Mapping[int, str], std: float, step: int) -> None:
        groups: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        gradients = [(p, _at_least_single(g).contiguous()) for p, g in zip(bounded.params, bounded.grads, strict=True)]
        for p, g in gradients:
            groups.setdefault((g.dtype, g.device), {})[names[id(p)]] = g
        for group in groups.values():
            torch._foreach_div_(list(group.values()), self.expected_batch_size)  # pyright: ignore[reportPrivateImportUsage]
            self._noise.add_(group, step=step, std=std)
        for p, g in gradients:
            p.grad = g.to(p.dtype)


def _at_least_single(g: Tensor) -> Tensor:
    """Noise is never added in half precision."""
    return g if g.dtype in (torch.float32, torch.float64) else g.float()


def shares_of(sums: Sequence[BoundedSum]) -> list[float]:
    """The part of the budget that goes to each sum: what it asks for, or an equal part of what is left.

    Raises:
        ValueError: they do not add up to one, or one is not above zero.
    """
    asked = sum(part.share for part in sums if part.share is not None)
    others = sum(part.share is None for part in sums)
    shares = [(1 - asked) / others if part.share is None else part.share for part in sums]
    if sums and not (all(share > 0 for share in shares) and math.isclose(sum(shares), 1, rel_tol=1e-12)):
        raise ValueError(f"the shares of a release add up to one and each is above zero, got {shares}")
    return shares


def parts_of(sums: Sequence[BoundedSum]) -> tuple[tuple[str, float], ...]:
    """What one release consists of, each part with its share; empty where it is the gradient alone."""
    parts: dict[str, float] = {}
    for part, share in zip(sums, shares_of(sums), strict=True):
        parts[part.name] = parts.get(part.name, 0.0) + share
    return tuple(parts.items()) if len(parts) > 1 else ()
