"""Gaussian noise that later steps partly take back: C^-1 times independent noise, computed step by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from noisette.core.noise import ALL_WHOLE, WHOLE, GaussianNoise, Window


@dataclass
class _Earlier:
    """The noise of the steps before, the latest first, and the step that it ends with."""

    step: int = -1
    noises: deque[Tensor] = field(default_factory=deque)


class BandedNoise:
    """Noise of the rows of C^-1, with the lower triangular Toeplitz matrix C of these coefficients c.

    The noise w of a step follows from the independent noise xi of the step and the noise of the steps before it:

        w_t = (xi_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0.

    So C w = xi. The last b - 1 noises of each tensor are kept, in single precision; the independent noise has the
    precision of the tensor. They are as secret as the key, and are never written: where the step before is missing
    (the first step of a process, one after a release that failed) the recursion starts anew. C then has two blocks
    in place of one, whose columns are no longer than those of C.

    Args:
        independent: draws xi.
        coefficients: the first column of C down to its last diagonal, of norm 1 at most; at least two, the first above
            0.

    Raises:
        ValueError: the coefficients are not such ones.

    Guarantee: the noise of a step is a function of (secret key, name, element) and of the steps since the recursion
    started, the same to the bit however a tensor is divided into windows, as long as each window stays the same.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", section 4.
    """

    def __init__(self, independent: GaussianNoise, coefficients: Sequence[float]) -> None:
        norm = math.sqrt(math.fsum(float(c) ** 2 for c in coefficients))
        if len(coefficients) < 2 or not coefficients[0] > 0 or not norm <= 1:
            raise ValueError(
                "expected at least two coefficients of norm 1 at most, the first one above 0, got "
                f"{len(coefficients)} of norm {norm:.9g}: divide them by their norm"
            )
        self._independent = independent
        self._first = float(coefficients[0])
        self._ratios = [float(c) / self._first for c in coefficients[1:]]
        self._earlier: dict[tuple[str, Window, int, torch.device], _Earlier] = {}

    @torch.no_grad()
    def add_(
        self,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        std: float = 1.0,
        divisor: float = 1.0,
        windows: Mapping[str, Window] = ALL_WHOLE,
    ) -> None:
        """Divide each tensor by a number and add the noise of this step times ``std`` to it, in place.

        Where ``std`` differs between steps, the noise is correlated in units of it. The arguments and errors are those
        of :meth:`GaussianNoise.add_`.
        """
        noises = {name: torch.zeros_like(tensor).view(-1) for name, tensor in tensors.items() if tensor.numel()}
        self._independent.add_(
            noises,
            step=step,
            std=1 / self._first,
            windows={name: window for name, window in windows.items() if name in noises or name not in tensors},
        )
        for name, noise in noises.items():
            window, tensor = windows.get(name, WHOLE), tensors[name].view(-1)
            self._correlate((name, window, len(noise), noise.device), noise, step)
            tensor.div_(divisor).add_(noise.mul_(std))

    def _correlate(self, place: tuple[str, Window, int, torch.device], noise: Tensor, step: int) -> None:
        """Subtract the part that takes back the noise of earlier steps, and keep the noise of this step."""
        earlier = self._earlier.get(place)
        if earlier is None or earlier.step != step - 1:
            earlier = self._earlier[place] = _Earlier()
        for ratio, kept in zip(self._ratios, earlier.noises, strict=False):
            noise.sub_(kept * ratio)  # in two operations: one with alpha is rounded differently at the end of a tensor
        full = len(earlier.noises) == len(self._ratios)
        latest = earlier.noises.pop() if full else torch.empty_like(noise, dtype=torch.float32)
        earlier.noises.appendleft(latest.copy_(noise))
        earlier.step = step
