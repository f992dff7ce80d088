"""The only place where a private value becomes public: noise of the right size, then division by a declared constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisette import _check
from noisette.bounding.base import BoundedSum
from noisette.keystream import SecretKey
from noisette.noise import Stream, gaussian_noise


@dataclass(frozen=True)
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

    key: SecretKey
    noise_multiplier: float
    expected_batch_size: float

    def __post_init__(self) -> None:
        _check.positive(noise_multiplier=self.noise_multiplier, expected_batch_size=self.expected_batch_size)

    def __call__(self, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
        """Write (sum + noise) / expected batch size to the ``.grad`` of every parameter.

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
            self._release(bounded, names, deviation, step)

    def _release(self, bounded: BoundedSum, names: Mapping[int, str], deviation: float, step: int) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
        for p, g in zip(bounded.params, bounded.grads, strict=True):
            precision = torch.float64 if torch.float64 in (p.dtype, g.dtype) else torch.float32
            groups.setdefault((precision, p.device), []).append((p, g))
        for (dtype, device), pairs in groups.items():
            streams = [Stream(names[id(p)], p.numel()) for p, _ in pairs]
            noise = gaussian_noise(
                self.key,
                streams,
                step=step,
                deviation=deviation / self.expected_batch_size,
                dtype=dtype,
                device=device,
            )
            for (p, g), z in zip(pairs, noise, strict=True):
                p.grad = z.view(p.shape).add_(g, alpha=1 / self.expected_batch_size).to(p.dtype)
