"""The Box-Muller transform on a processor without a compiler: one operation after another, in memory of its own.

Operations are written out, since each of them goes over memory once: in place where they can be, with halves of a tile
apart, so that nothing is broadcast. Not used are operations that may be fused (``addcmul``, ``add`` with ``alpha``) and
``torch.sqrt``, which rounds otherwise than the root of IEEE 754; NumPy's does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from noisette.core.keys import SecretKey
from noisette.mechanisms.box_muller import (
    QUARTER_TURN,
    RADIUS_MASK,
    TWO_LN_2,
    Compiled,
    CompiledPass,
    Pass,
    digits_of,
)
from noisette.mechanisms.noise_tiles import PAIRS, TILES_AT_ONCE, Bits


class EagerPass:
    """The noised quotient of :func:`~noisette.mechanisms.box_muller.noised_quotient` for sums of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._digits = digits_of(dtype)
        self._rounds = dtype == torch.float32  # k has 53 bits; double precision holds them
        self._k = torch.empty(TILES_AT_ONCE, PAIRS, dtype=torch.int64)
        self._integers = torch.empty(TILES_AT_ONCE, PAIRS, dtype=self._digits.integers)
        self._numbers = [torch.empty(TILES_AT_ONCE, PAIRS, dtype=dtype) for _ in range(3)]
        self._turned = torch.empty(2, TILES_AT_ONCE, PAIRS, dtype=torch.int32)
        self._halves = [torch.empty(2, TILES_AT_ONCE, PAIRS, dtype=dtype) for _ in range(3)]
        self._top = torch.tensor(self._digits.top, dtype=self._digits.integers)
        self._two = torch.tensor(2.0 ** (self._digits.mantissa + 2), dtype=dtype)
        self._quarter = torch.tensor(QUARTER_TURN, dtype=torch.int32)

    def __call__(self, bits: Bits, sums: Tensor, tiles: int, *, std: float, divisor: float) -> None:
        radius = self._radius(bits.radii[:tiles]).mul_(std)
        values = self._sines(bits.angles[:tiles])
        for half in values:
            half.mul_(radius)
        sums[:tiles].div_(divisor).add_(values.transpose(0, 1))

    def _radius(self, radii: Tensor) -> Tensor:
        """The radius of each pair; the words are overwritten."""
        tiles, digits = len(radii), self._digits
        k, integers = self._k[:tiles], self._integers[:tiles]
        r, s, result = (buffer[:tiles] for buffer in self._numbers)
        torch.bitwise_and(radii, RADIUS_MASK, out=k).add_(1)
        r.copy_(k)
        if self._rounds:
            k.sub_(radii.copy_(r))  # what the rounding left out
        below = r.view(digits.integers)
        torch.sub(self._top, below, out=below)
        result.copy_(torch.bitwise_right_shift(below, digits.mantissa, out=integers)).mul_(TWO_LN_2)
        s.copy_(below.bitwise_and_(2**digits.mantissa - 1))
        if self._rounds:
            s.sub_(r.copy_(k).mul_(2.0 ** (digits.mantissa - 52)))
        s.div_(torch.sub(self._two, s, out=r))
        squared = torch.mul(s, s, out=r)
        # The sum of e 2 ln 2 and s times a polynomial, in the memory that is left.
        polynomial = self._halves[0][0, :tiles]
        _polynomial(digits.logarithm, squared, polynomial)
        result.add_(polynomial.mul_(s))
        root = result.numpy()
        np.sqrt(root, out=root)
        return result

    def _sines(self, angles: Tensor) -> Tensor:
        """Cosines and sines, shape (2, tiles, PAIRS)."""
        tiles = len(angles)
        turned = self._turned[:, :tiles]
        t, squared, result = (buffer[:, :tiles] for buffer in self._halves)
        torch.bitwise_or(angles, 1, out=turned[0])
        torch.sub(turned[0], QUARTER_TURN, out=turned[1])
        turned.abs_()
        t.copy_(torch.sub(self._quarter, turned, out=turned)).mul_(1 / QUARTER_TURN)
        torch.mul(t, t, out=squared)
        return _polynomial(self._digits.sine, squared, result).mul_(t)


def _polynomial(coefficients: Sequence[float], x: Tensor, result: Tensor) -> Tensor:
    """Its value by Horner's rule."""
    *others, value = coefficients
    torch.mul(x, value, out=result).add_(others.pop())
    while others:
        result.mul_(x).add_(others.pop())
    return result


def is_faithful(compiled: Compiled, dtype: torch.dtype) -> bool:
    """Whether the compiled pass gives the values of the eager one, for bits that are known and bits at both extremes.

    To the bit: otherwise the noise of an element would depend on how much is drawn with it.
    """
    extremes = torch.tensor([[0], [-1], [0], [-1], [RADIUS_MASK - 2**24 + 1]])  # the last is close to u = 1
    bits, results = Bits(), []
    passes: Sequence[Pass] = (CompiledPass(compiled), EagerPass(dtype))
    for one_pass in passes:
        SecretKey(bytes(32)).fill(bits.words, purpose="test of the compiled noise", name="", step=0)
        bits.radii[: len(extremes)], bits.angles[:4] = extremes, torch.tensor([[0], [0], [-1], [-1]])
        sums = torch.linspace(-3, 3, TILES_AT_ONCE * 2 * PAIRS, dtype=dtype).view(TILES_AT_ONCE, 2, PAIRS)
        one_pass(bits, sums, TILES_AT_ONCE, std=1.5, divisor=2.5)
        results.append(sums)
    return torch.equal(*results)
