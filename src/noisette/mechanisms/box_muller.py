"""From random bits and sums to noised quotients, by the Box-Muller transform.

R cos(a) and R sin(a) with R^2 = -2 ln(u), u uniform in (0, 1], a in [-pi, pi). With k the low 53 bits of a word,
u = (k + 1) 2^-53 is never 0, so the logarithm is finite and the largest radius is sqrt(2 * 53 ln 2) = 8.57. The angle a
is pi times a signed 32-bit integer over 2^31.

u and its logarithm are in double precision: in single precision a u close to one would round to one, and the radius,
and with it the noise, to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from noisette._internal.keystream import SecretKey
from noisette.mechanisms.noise_tiles import PAIRS, TILES_AT_ONCE, Bits

_RADIUS_BITS = 53
_SMALLEST = 2.0**-_RADIUS_BITS
_HALF_TURN = math.pi / 2**31

Compiled = Callable[..., Any]
"""The compiled :func:`noised_quotient`."""


class Pass(Protocol):
    """Divides sums by a constant and adds noise to them, in place."""

    def __call__(self, bits: Bits, sums: Tensor, tiles: int, *, std: float, divisor: float) -> None:
        """Noise the first tiles; what becomes of the others is not defined.

        Args:
            bits: the random bits.
            sums: shape (TILES_AT_ONCE, 2, PAIRS).
            tiles: how many of them have bits.
            std: standard deviation of the noise.
            divisor: the constant.
        """
        ...


def noised_quotient(
    radii: Tensor, angles: Tensor, cosines: Tensor, sines: Tensor, std: Tensor, divisor: Tensor
) -> list[Tensor]:
    """The whole computation in operations that a compiler can do in one pass over memory.

    Standard deviation and divisor are tensors, so that nothing is compiled anew when they change. The two halves of
    each tile are separate arguments, because a compiler needs a second pass to put two results into one tensor.

    Args:
        radii: shape (tiles, PAIRS), 64 bits each.
        angles: shape (tiles, PAIRS), 32 bits each.
        cosines: the sums that get the noise R cos(a), shape (tiles, PAIRS); overwritten.
        sines: those that get R sin(a).
        std: a number in double precision.
        divisor: a number in double precision.

    Returns:
        The cosines; torch compiles no graph without a result.
    """
    u = ((radii & (2**_RADIUS_BITS - 1)).double() + 1) * _SMALLEST
    radius = (-2 * u.log()).to(cosines.dtype).sqrt() * std.to(cosines.dtype)
    a = angles.to(cosines.dtype) * _HALF_TURN
    cosines.copy_(cosines / divisor.to(cosines.dtype) + radius * a.cos())
    sines.copy_(sines / divisor.to(cosines.dtype) + radius * a.sin())
    return [cosines]


def example_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Inputs of the shapes with which :func:`noised_quotient` is compiled for sums of this type, in every model."""
    bits = Bits()
    halves = [torch.empty_strided((TILES_AT_ONCE, PAIRS), (2 * PAIRS, 1), dtype=dtype).zero_() for _ in range(2)]
    return [bits.radii, bits.angles, *halves, *torch.ones(2, dtype=torch.float64)]


class CompiledPass:
    """The compiled pass for sums of one type, on a processor. It computes all ``TILES_AT_ONCE`` tiles."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._std, self._divisor = torch.ones(2, dtype=torch.float64)

    def __call__(self, bits: Bits, sums: Tensor, tiles: int, *, std: float, divisor: float) -> None:
        self._std.fill_(std)
        self._divisor.fill_(divisor)
        self._compiled(bits.radii, bits.angles, sums[:, 0], sums[:, 1], self._std, self._divisor)


class EagerPass:
    """One operation of torch after another, in memory of its own."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._smallest = torch.tensor(_SMALLEST, dtype=torch.float64, device=device)
        self._quarter = torch.tensor([[math.pi / 2], [0]], dtype=dtype, device=device)
        self._logarithm = torch.empty(TILES_AT_ONCE, PAIRS, dtype=torch.float64, device=device)
        self._radius = torch.empty(TILES_AT_ONCE, PAIRS, dtype=dtype, device=device)
        self._values = torch.empty(TILES_AT_ONCE, 2, PAIRS, dtype=dtype, device=device)

    def __call__(self, bits: Bits, sums: Tensor, tiles: int, *, std: float, divisor: float) -> None:
        logarithm = self._logarithm[:tiles].copy_(bits.radii[:tiles].bitwise_and_(2**_RADIUS_BITS - 1))
        torch.add(self._smallest, logarithm, alpha=_SMALLEST, out=logarithm).log_()
        radius = self._radius[:tiles].copy_(logarithm).mul_(-2).sqrt_()
        # cos(a) = sin(a + pi / 2), so one sine computes both halves of a tile.
        values = self._values[:tiles].copy_(bits.angles[:tiles].unsqueeze(1))
        torch.add(self._quarter, values, alpha=_HALF_TURN, out=values).sin_().mul_(radius.unsqueeze(1))
        sums[:tiles].div_(divisor).add_(values, alpha=std)


def is_faithful(compiled: Compiled, dtype: torch.dtype) -> bool:
    """Whether the compiled pass gives what the eager one gives, for bits that are known and bits at both extremes."""
    extremes = torch.tensor([[0], [-1], [0], [-1], [2**_RADIUS_BITS - 2**24]])  # the last is close to u = 1
    bits, results = Bits(), []
    passes: Sequence[Pass] = (CompiledPass(compiled), EagerPass(dtype, torch.device("cpu")))
    for one_pass in passes:
        SecretKey(bytes(32)).fill(bits.words, purpose="test of the compiled noise", name="", step=0)
        bits.radii[: len(extremes)], bits.angles[:4] = extremes, torch.tensor([[0], [0], [-1], [-1]])
        sums = torch.linspace(-3, 3, TILES_AT_ONCE * 2 * PAIRS, dtype=dtype).view(TILES_AT_ONCE, 2, PAIRS)
        one_pass(bits, sums, TILES_AT_ONCE, std=1.5, divisor=2.5)
        results.append(sums)
    return torch.allclose(*results, rtol=0, atol=100 * torch.finfo(dtype).eps)
