"""What any attack on the membership of one record can reach, as rows of a table and as panels of a figure."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from noisette.accounting.trade_off import TradeOff
from noisette.training.report.plan_figures import Line, Panel
from noisette.training.report.svg import BLUE, INK

ALARMS = (0.01, 0.001)  # the false-positive rates of the table
RARELY = 0.01  # how often a belief may be above the stated one
CAPTIONS = (
    "An attack that raises more false alarms finds more members. No attack lies above the line, whatever it computes.",
    "δ bounds what goes beyond a factor of e to the power of ε. The guarantee at one δ is one point of this line.",
)
_LEAST = 1e-4  # false-positive rate at the left end of the figure
_POINTS = 60
_VISIBLE = 1e-12  # a smaller delta would only lengthen the axis


def attack_rows(attack: TradeOff) -> list[tuple[str, str]]:
    """What is measured, and the most that any attack reaches of it, rounded upwards."""
    rows = [
        *((f"members found, at {100 * rate:g} % false alarms", attack.true_positive_rate(rate)) for rate in ALARMS),
        ("members found minus false alarms (advantage)", attack.advantage),
        ("right answers, where members and others are equally many", attack.accuracy),
        (
            f"certainty about a member, 50 % before, exceeded in at most {100 * RARELY:g} of 100 trainings",
            attack.posterior(exceeded=RARELY),
        ),
    ]
    return [(name, upward_percent(share)) for name, share in rows]


def attack_sentence(attack: TradeOff, unit: str) -> str:
    """The bounds for readers who know no epsilon; the unit that the guarantee protects is a record or a user."""
    many, few = (upward_percent(attack.true_positive_rate(rate)) for rate in ALARMS)
    return (
        "Whoever sees everything released and knows all other records, and tries to tell whether one "
        f"{unit} took part, is right at most {upward_percent(attack.accuracy)} of the time; a coin toss is right "
        f"50 % of it. With false alarms for at most 1 % of the {unit}s that took no part, any attack finds at most "
        f"{many} of those that did; with at most 0.1 %, at most {few}."
    )


def attack_panels(attack: TradeOff) -> list[Panel]:
    """The trade-off curve as the most members found by false alarms, and delta against epsilon."""
    alarms = [_LEAST ** (1 - k / (_POINTS - 1)) for k in range(_POINTS)]
    found = [attack.true_positive_rate(rate) for rate in alarms]
    pairs = [(epsilon, delta) for epsilon, delta in attack.profile if epsilon > 0 and delta > _VISIBLE]
    panels = [
        Panel(
            "Most members that any attack finds",
            "false-positive rate",
            "true-positive rate",
            [Line("guessing", alarms, alarms, INK, 0.5, ":"), Line("any attack", alarms, found)],
        )
    ]
    if len(pairs) > 1:
        epsilons, deltas = zip(*pairs, strict=True)
        panels.append(Panel("Privacy profile: δ at every ε", "ε", "δ", [Line("all steps", epsilons, deltas, BLUE)]))
    return panels


def upward_percent(share: float) -> str:
    """A share as a percentage, rounded up: to one decimal, below one percent to two.

    >>> upward_percent(0.0711), upward_percent(0.00401), upward_percent(1.0)
    ('7.2 %', '0.41 %', '100 %')
    """
    digits = Decimal("0.01") if share < 0.01 else Decimal("0.1")
    value = (100 * Decimal(repr(float(share)))).quantize(digits, ROUND_CEILING)
    return "100 %" if value >= 100 else f"{value} %"
