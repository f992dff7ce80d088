"""The privacy cost of a run as ``noisette account``, ``calibrate`` and ``plan`` print and draw it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette.accounting import Accountant, BandedGaussian, FixedSizeGaussian, GroupPrivacy, PoissonGaussian, TradeOff
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.errors import UnsupportedEventError

if TYPE_CHECKING:
    from noisette.training.report.plan_figures import Panel
    from noisette.training.report.plot import Cells

_VISIBLE = 1e-9  # of the last value of a line: a smaller delta would only lengthen the axis


@dataclass(frozen=True)
class PrivacyCost:
    """A run with its epsilon and delta, which of its parameters was asked for, and its budget, if it has one."""

    event: PoissonGaussian | BandedGaussian | FixedSizeGaussian | GroupPrivacy
    steps: int
    accountant: str
    epsilon: float
    delta: float
    found: str
    budget: float | None = None

    def show(self, *, as_json: bool, plot: Path | None, command: str) -> None:
        """Write the plot, if one is wanted, and print the result."""
        if plot is not None:
            self._draw(plot, command)
        if as_json:
            typer.echo(json.dumps(self._facts()))
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        for k, row in enumerate(self._rows()):
            table.add_row(*row, style="bold" if k == 0 else None)
        Console(highlight=False, soft_wrap=True).print(table)

    @property
    def _release(self) -> PoissonGaussian | BandedGaussian | FixedSizeGaussian:
        return self.event.event if isinstance(self.event, GroupPrivacy) else self.event  # pyright: ignore[reportReturnType]

    def _facts(self) -> dict[str, Any]:
        release = self._release
        parameters = ("sampling_rate", "batch_size", "size", "bands", "noise_multiplier")
        return {
            "found": self.found,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            **{name: getattr(release, name) for name in parameters if hasattr(release, name)},
            "steps": self.steps,
            "accountant": self.accountant,
            "upper_bound": ACCOUNTANTS[self.accountant].upper_bound,
            "neighbouring": self.event.relation,
            "sampling": self.event.sampling,
        }

    def _rows(self) -> list[tuple[str, str]]:
        """Name and value of every parameter, the one that was asked for first."""
        release = self._release
        rows = {
            "epsilon": _shown(self.epsilon, self.accountant),
            "delta": _shown(self.delta, self.accountant),
            "noise_multiplier": rounded_up(release.noise_multiplier),
            "steps": f"{self.steps:,}",
        }
        if isinstance(release, FixedSizeGaussian):
            rows["noise_multiplier"] += " × clipping norm"
            rows["batches"] = f"{release.batch_size:,} of {release.size:,} records, {release.sampling}"
        else:
            rate = release.sampling_rate
            rows["sampling_rate"] = rounded_down(rate) if self.found == "sampling_rate" else f"{rate:.6g}"
            rows["sampling"] = release.sampling
            if isinstance(release, BandedGaussian):
                rows["bands"] = f"{release.bands:,}: a round that was begun counts as a whole"
        rows["neighbouring"] = self.event.relation
        rows["accountant"] = f"{self.accountant} ({ACCOUNTANTS[self.accountant].description})"
        order = [self.found, *(name for name in rows if name != self.found)]
        return [(name.replace("_", " "), rows[name]) for name in order]

    def _draw(self, path: Path, command: str) -> None:
        from noisette.training.report.plot import Plot

        name, value = self._rows()[0]
        sought = "" if self.found in ("epsilon", "delta") else f"{name.capitalize()} {value}: "
        cost = f"ε = {_shown(self.epsilon, self.accountant)} at δ = {_shown(self.delta, self.accountant)}"
        title = f"{sought}{cost} after {self.steps:,} steps"
        description = ACCOUNTANTS[self.accountant].description
        lead = f"By the accountant {self.accountant} ({description}); {self.event.relation}."
        panels, tables = [self.curve()], [("The run", (), self._rows()), self.by_accountant()]
        if ACCOUNTANTS[self.accountant].upper_bound:
            from noisette.training.report.attacks import attack_panels, attack_rows

            attack = TradeOff(ACCOUNTANTS[self.accountant].compose({self.event: self.steps}))
            panels += attack_panels(attack)
            tables.insert(1, (f"What any attack reaches at most ({self.event.relation})", (), attack_rows(attack)))
        Plot(command, title, lead, panels, tables).write(path)

    def by_accountant(self) -> Cells:
        """The table of this run's cost by every accountant."""
        rows = [
            (name, "not supported" if value is None else _shown(value, name), ACCOUNTANTS[name].description)
            for name, value in self.values().items()
        ]
        return f"{self._letter} of the same steps by every accountant", ("accountant", self._letter, ""), rows

    def values(self) -> dict[str, float | None]:
        """The cost of this run by every accountant; ``None`` where it does not support the event."""
        return {name: self._value(accountant, self.steps) for name, accountant in ACCOUNTANTS.items()}

    def curve(self) -> Panel:
        """Epsilon after part of the steps, or delta if that was asked for; this accountant's line is emphasised."""
        from noisette.training.report.plan_figures import Line, Panel
        from noisette.training.report.svg import BLUE, INK

        checkpoints = sorted({max(1, round(self.steps * 10 ** (-k / 4))) for k in range(1, 9)} - {self.steps})
        lines = []
        for name, value in self.values().items():
            if value is None:
                continue
            accountant = ACCOUNTANTS[name]
            values = [*(self._value(accountant, steps) or 0.0 for steps in checkpoints), value]
            values = [part if part > _VISIBLE * value else 0.0 for part in values]
            colour, strength = (BLUE, 1.0) if name == self.accountant else (INK, 0.4)
            dashes = "-" if ACCOUNTANTS[name].upper_bound else ":"
            label = f"{name} {_shown(value, name)}"
            lines.append(Line(label, [*checkpoints, self.steps], values, colour, strength, dashes))
        fixed = f"ε = {self.epsilon:g}" if self.found == "delta" else f"δ = {self.delta:g}"
        return Panel(f"{self._letter} at {fixed}, by accountant", "steps", self._letter, lines, self.budget)

    @property
    def _letter(self) -> str:
        return "δ" if self.found == "delta" else "ε"

    def _value(self, accountant: Accountant, steps: int) -> float | None:
        """The cost of this many steps by an accountant; ``None`` where it does not support the event."""
        try:
            curve = accountant.compose({self.event: steps})
        except UnsupportedEventError:
            return None
        return curve.delta(epsilon=self.epsilon) if self.found == "delta" else curve.epsilon(delta=self.delta)


def json_number(value: float) -> float | str:
    """The value, or a string for one that is not a JSON number; ``float()`` reads both."""
    return value if math.isfinite(value) else str(value)


def accountant_facts(name: str, epsilon: float | None) -> dict[str, Any]:
    """Epsilon by one accountant, for JSON; ``None`` where it does not support the events."""
    return {
        "accountant": name,
        "epsilon": None if epsilon is None else json_number(epsilon),
        "upper_bound": ACCOUNTANTS[name].upper_bound,
    }


def _shown(value: float, accountant: str) -> str:
    """An epsilon or a delta in five digits: rounded upwards where it is an upper bound."""
    return rounded_up(value) if ACCOUNTANTS[accountant].upper_bound else f"{value:.5g}"


def rounded_up(value: float, digits: int = 5) -> str:
    """The value in so many digits, never smaller: neither a privacy cost nor a noise may look smaller than it is.

    >>> rounded_up(0.94692), rounded_up(1e-5), rounded_up(2.000001)
    ('0.94692', '1e-05', '2.0001')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float) -> str:
    """The value in five digits, never larger: a parameter that keeps a budget must keep it as printed.

    >>> rounded_down(0.010518999)
    '0.010518'
    """
    return _rounded(value, 5, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(repr(float(value)))):.{digits}g}"
