"""Numbers formatted for readers; an epsilon is never rounded down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def upward(epsilon: float) -> str:
    """An epsilon in two decimals, or below 0.01 in two digits, rounded up.

    >>> upward(2.991), upward(3.0), upward(0.000401)
    ('3.00', '3.00', '0.00041')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    whole = Decimal(repr(float(epsilon)))
    last = Decimal(1).scaleb(whole.adjusted() - 1) if 0 < epsilon < 0.01 else Decimal("0.01")
    return str(whole.quantize(last, ROUND_CEILING)).lower()


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


def templates(package: str) -> Environment:
    """The templates of a package, with the style sheet of the report; undefined variables are errors."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("noisette.training.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
