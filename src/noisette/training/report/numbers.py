"""Numbers formatted for readers; an epsilon is never rounded down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal


def upward(epsilon: float) -> str:
    """An epsilon in two decimals, rounded up.

    >>> upward(2.991), upward(3.0), upward(0.0004)
    ('3.00', '3.00', '0.01')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.01"), ROUND_CEILING))


def percent(share: float) -> str:
    """A share as a percentage in one decimal.

    >>> percent(0.936)
    '93.6 %'
    """
    return f"{share:.1%}".replace("%", " %")


def power_of_ten(delta: float) -> str:
    """A small number in scientific notation, without the zeros.

    >>> power_of_ten(1e-4), power_of_ten(2.5e-11)
    ('1e-4', '2.5e-11')
    """
    mantissa, exponent = f"{delta:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def duration(seconds: float) -> str:
    """A time span in suitable units.

    >>> duration(3.21), duration(75), duration(7322)
    ('3.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
