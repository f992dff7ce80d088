"""From random bits and sums to noised quotients, by the Box-Muller transform, the same to the bit everywhere.

R cos(a) and R sin(a) with R^2 = -2 ln(u), u uniform in (0, 1], a in [-pi, pi). With k - 1 the low 53 bits of a word,
u = k 2^-53 is never 0, so the logarithm is finite and the largest radius is sqrt(2 * 53 ln 2) = 8.57. The angle a is pi
times an odd integer of 32 bits over 2^31, so no sine and no cosine is 0.

Only +, -, *, / and square roots are used, each rounded correctly and none fused with another. So a processor and a GPU
give the same values, and so do eager and compiled code. Library functions differ in the last digit; among them is
``torch.sqrt`` on processors.

The logarithm. k is rounded to a floating-point number r, and u = v 2^-e with v in (1/2, 1] and

    -2 ln u = e * 2 ln 2 + 4 atanh(s), s = (1 - v) / (1 + v).

1 - v is read from the bits of r, and what the rounding left out, r - k, is added to it. So for u close to one, where
e = 0, the radius keeps all digits: with v alone it would be zero for all u that round to one.

The angle. cos(a) = sin(pi/2 - |a|), and pi/2 - |a| is an integer multiple of pi/2^31 within [-pi/2, pi/2]; sin(a) =
cos(a - pi/2). So one polynomial gives both, and the reduction is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from noisette.mechanisms.noise_tiles import PAIRS, TILES_AT_ONCE, Bits

RADIUS_MASK = 2**53 - 1
QUARTER_TURN = 2**30

Compiled = Callable[..., Any]
"""The compiled :func:`noised_quotient`."""


@dataclass(frozen=True)
class Digits:
    """The constants of the formula in one precision.

    Args:
        mantissa: explicit bits of a mantissa.
        top: the bits of 2^53. Less the bits of r they are e 2^mantissa + (1 - v) 2^(mantissa + 1).
        integers: the integers of the size of a floating-point number.
        logarithm: coefficients of 4 atanh(s) / s in s^2, lowest first, for s in [0, 1/3].
        sine: those of sin(pi/2 t) / t in t^2, for t in [-1, 1].
    """

    mantissa: int
    top: int
    integers: torch.dtype
    logarithm: tuple[float, ...]
    sine: tuple[float, ...]


# Minimax polynomials for single precision, Chebyshev's for double. Largest relative errors: 4.5e-9 and 5.3e-9 for the
# first, 1.4e-18 and 3e-19 for the second, before their coefficients are rounded.
SINGLE = Digits(
    mantissa=23,
    top=(127 + 53) << 23,
    integers=torch.int32,
    logarithm=(4.0, 1.333328366279602, 0.8004305362701416, 0.5600361227989197, 0.5602397322654724),
    sine=(1.5707963705062866, -0.645963728427887, 0.07968968152999878, -0.004673766437917948, 0.00015148513193707913),
)
DOUBLE = Digits(
    mantissa=52,
    top=(1023 + 53) << 52,
    integers=torch.int64,
    logarithm=(
        *(4.0, 1.333333333333323, 0.800000000003715, 0.5714285709090823, 0.4444444816149535, 0.3636348166500961),
        *(0.3077322808460802, 0.2660074806534925, 0.24220337456138435, 0.1664901302372164, 0.34088327125562795),
    ),
    sine=(
        *(1.5707963267948966, -0.6459640975062462, 0.07969262624616565, -0.004681754135304255),
        *(0.0001604411847130916, -3.5988430204672576e-06, 5.6921364280986254e-08, -6.684416831856085e-10),
        5.87297574479995e-12,
    ),
)
TWO_LN_2 = 1.3862943611198906


def digits_of(dtype: torch.dtype) -> Digits:
    """The constants for sums of this type."""
    return DOUBLE if dtype == torch.float64 else SINGLE


class Pass(Protocol):
    """Divides sums by a constant and adds noise to them, in place."""

    def __call__(self, bits: Bits, sums: Tensor, tiles: int, *, std: float, divisor: float) -> None:
        """Noise the first tiles; what becomes of the others is not defined.

        Args:
            bits: the random bits; may be overwritten.
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

    On a GPU it is right as it stands, on a processor only if it is compiled, since ``torch.sqrt`` there is not.

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
    dtype, digits = cosines.dtype, digits_of(cosines.dtype)
    k = (radii & RADIUS_MASK) + 1
    r = k.to(dtype)
    below = digits.top - r.view(digits.integers)
    left_out = (k - r.to(torch.int64)).to(dtype) * 2.0 ** (digits.mantissa - 52)
    from_one = (below & (2**digits.mantissa - 1)).to(dtype) - left_out
    s = from_one / (2.0 ** (digits.mantissa + 2) - from_one)
    squared = (below >> digits.mantissa).to(dtype) * TWO_LN_2 + s * _polynomial(digits.logarithm, s * s)
    radius = square_root(squared) * std.to(dtype)
    odd, by = angles | 1, divisor.to(dtype)
    for sums, turned in ((cosines, odd), (sines, odd - QUARTER_TURN)):
        t = (QUARTER_TURN - turned.abs()).to(dtype) * (1 / QUARTER_TURN)
        sums.copy_(sums / by + t * _polynomial(digits.sine, t * t) * radius)
    return [cosines]


def square_root(squared: Tensor) -> Tensor:
    """The root, rounded correctly in compiled code and on GPUs."""
    return squared.sqrt()


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Its value by Horner's rule."""
    *others, value = coefficients
    result = x * value + others.pop()
    while others:
        result = result * x + others.pop()
    return result


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
