"""The only place where a private value becomes public: noise of the right size, and division by a declared constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette import _check
from noisette.bounding.base import BoundedSum
from noisette.keystream import SecretKey
from noisette.noise import GaussianNoise


class GaussianRelease:
    """Noises bounded sums and writes them to ``.grad``, the only values ever found there.

    Args:
        key: secret source of the noise.
        noise_multiplier: standard deviation of the noise in units of the bound.
        expected_batch_size: the declared constant that the sum is divided by, whatever the batch held.

    Guarantee: one call is one Gaussian mechanism of this noise multiplier, however many sums it is given: with k sums
    each gets noise of ``noise_multiplier * bound * sqrt(k)``, which keeps the joint sensitivity at one.
    Source: Abadi et al. 2016, algorithm 1.
    """

    def __init__(self, key: SecretKey, noise_multiplier: float, expected_batch_size: float) -> None:
        _check.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
        self.noise_multiplier = float(noise_multiplier)
        self.expected_batch_size = float(expected_batch_size)
        self._noise = GaussianNoise(key)

    def __call__(self, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
        """Write (sum + noise) / expected batch size to the ``.grad`` of every parameter.

        The sums are used up: their memory becomes that of the noised gradients, and no private value stays behind.

        Args:
            sums: what the bound handed over for this logical batch.
            names: the name of each parameter, by ``id``; it selects the parameter's noise.
            step: number of the logical step; each number is used once in the life of the key.
        """
        widened = math.sqrt(len(sums))
        for bounded in sums:
            deviation = self.noise_multiplier * bounded.bound * widened
            if not 0 < deviation < math.inf:
                raise ValueError(f"noise of standard deviation {deviation} hides nothing")
            self._release(bounded, names, deviation / self.expected_batch_size, step)

    def _release(self, bounded: BoundedSum, names: Mapping[int, str], deviation: float, step: int) -> None:
        groups: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        gradients = [(p, _at_least_single(g).contiguous()) for p, g in zip(bounded.params, bounded.grads, strict=True)]
        for p, g in gradients:
            groups.setdefault((g.dtype, g.device), {})[names[id(p)]] = g.div_(self.expected_batch_size)
        for group in groups.values():
            self._noise.add_(group, step=step, deviation=deviation)
        for p, g in gradients:
            p.grad = g.to(p.dtype)


def _at_least_single(g: Tensor) -> Tensor:
    """Noise is never added in half precision."""
    return g if g.dtype in (torch.float32, torch.float64) else g.float()
