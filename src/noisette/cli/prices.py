"""The price of a run as ``noisette account`` and ``noisette calibrate`` take, print and draw it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette.accounting import Accountant, FixedSizeGaussian, GroupPrivacy, PldAccountant, PoissonGaussian
from noisette.cli.accountants import ACCOUNTANTS, OPTIMISTIC, AccountantName
from noisette.errors import UnsupportedEventError

if TYPE_CHECKING:
    from noisette.training.report.plan_figures import Panel
    from noisette.training.report.plot import Cells

SAMPLING_RATE = typer.Option(help="Probability that a record is in one step's batch: above 0, at most 1.")
NOISE_MULTIPLIER = typer.Option(
    help="Standard deviation of the noise, in units of the most one record can move the sum: above 0."
)
STEPS = typer.Option(help="Number of steps, empty batches included: at least 1.")
EPSILON = typer.Option(help="Privacy budget, in nats: above 0.")
DELTA = typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1.")
AccountantChoice = Annotated[
    AccountantName,
    typer.Option(
        "--accountant",
        help="What prices the steps. pld is the tightest; gdp is exact for full batches; strong-paper is for "
        "comparison only; the others are upper bounds too.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]


def json_number(value: float) -> float | str:
    """The value, or the word for one that is no JSON number; ``float()`` reads both."""
    return value if math.isfinite(value) else str(value)


_SHOWN = 1e-9  # of a line's end: a delta below that would only make the axis longer
_QUICK = PldAccountant(coarseness=4)  # for the course of a line, at most 0.3 % above the price at its end


@dataclass(frozen=True)
class Price:
    """A run, what it costs, which of its numbers was asked for, and the budget it had to keep, if any."""

    event: PoissonGaussian | FixedSizeGaussian | GroupPrivacy
    steps: int
    accountant: AccountantName
    epsilon: float
    delta: float
    found: str
    budget: float | None = None

    def show(self, *, as_json: bool, plot: Path | None, command: str) -> None:
        """Print it, after the plot is written."""
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
    def _release(self) -> PoissonGaussian | FixedSizeGaussian:
        return self.event.event if isinstance(self.event, GroupPrivacy) else self.event  # pyright: ignore[reportReturnType]

    def _facts(self) -> dict[str, Any]:
        release = self._release
        numbers = ("sampling_rate", "batch_size", "size", "noise_multiplier")
        return {
            "found": self.found,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            **{name: getattr(release, name) for name in numbers if hasattr(release, name)},
            "steps": self.steps,
            "accountant": self.accountant.value,
            "upper_bound": self.accountant not in OPTIMISTIC,
            "neighbouring": self.event.relation,
            "sampling": self.event.sampling,
        }

    def _rows(self) -> list[tuple[str, str]]:
        """Name and value of everything the price rests on, the number that was asked for first."""
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
        rows["neighbouring"] = self.event.relation
        rows["accountant"] = f"{self.accountant.value} ({ACCOUNTANTS[self.accountant][1]})"
        order = [self.found, *(name for name in rows if name != self.found)]
        return [(name.replace("_", " "), rows[name]) for name in order]

    def _draw(self, path: Path, command: str) -> None:
        from noisette.training.report.plot import Plot

        name, value = self._rows()[0]
        sought = "" if self.found in ("epsilon", "delta") else f"{name.capitalize()} {value}: "
        price = f"ε = {_shown(self.epsilon, self.accountant)} at δ = {_shown(self.delta, self.accountant)}"
        title = f"{sought}{price} after {self.steps:,} steps"
        lead = f"By the accountant {self.accountant.value} ({ACCOUNTANTS[self.accountant][1]}); {self.event.relation}."
        tables = [("The run", (), self._rows()), self.by_accountant()]
        Plot(command, title, lead, [self.course()], tables).write(path)

    def by_accountant(self) -> Cells:
        """The table of what every accountant says of this run."""
        rows = [
            (name.value, "no price" if value is None else _shown(value, name), ACCOUNTANTS[name][1])
            for name, value in self.values().items()
        ]
        return f"{self._letter} of the same steps by every accountant", ("accountant", self._letter, ""), rows

    def values(self) -> dict[AccountantName, float | None]:
        """What every accountant says of this run; ``None`` where it has no price for such releases."""
        return {name: self._value(accountant, self.steps) for name, (accountant, _) in ACCOUNTANTS.items()}

    def course(self) -> Panel:
        """Epsilon after part of the steps, or delta if that was asked for; this accountant's line stands out."""
        from noisette.training.report.plan_figures import Line, Panel
        from noisette.training.report.svg import BLUE, INK

        checkpoints = sorted({max(1, round(self.steps * 10 ** (-k / 4))) for k in range(1, 9)} - {self.steps})
        lines = []
        for name, value in self.values().items():
            if value is None:
                continue
            accountant = _QUICK if name is AccountantName.PLD else ACCOUNTANTS[name][0]
            values = [*(self._value(accountant, steps) or 0.0 for steps in checkpoints), value]
            values = [part if part > _SHOWN * value else 0.0 for part in values]
            colour, strength = (BLUE, 1.0) if name is self.accountant else (INK, 0.4)
            dashes = ":" if name in OPTIMISTIC else "-"
            lines.append(
                Line(
                    f"{name.value} {_shown(value, name)}", [*checkpoints, self.steps], values, colour, strength, dashes
                )
            )
        fixed = f"ε = {self.epsilon:g}" if self.found == "delta" else f"δ = {self.delta:g}"
        return Panel(f"{self._letter} at {fixed}, by accountant", "steps", self._letter, lines, self.budget)

    @property
    def _letter(self) -> str:
        return "δ" if self.found == "delta" else "ε"

    def _value(self, accountant: Accountant, steps: int) -> float | None:
        """What an accountant says of so many steps, if it has a price for them."""
        try:
            curve = accountant.compose({self.event: steps})
        except UnsupportedEventError:
            return None
        return curve.delta(epsilon=self.epsilon) if self.found == "delta" else curve.epsilon(delta=self.delta)


def _shown(price: float, name: AccountantName) -> str:
    """A price in five digits: rounded upwards, unless it is no upper bound anyway."""
    return f"{price:.5g}" if name in OPTIMISTIC else rounded_up(price)


def rounded_up(value: float, digits: int = 5) -> str:
    """So many digits, never less than the value: neither a price nor a noise may look smaller than it is.

    >>> rounded_up(0.94692), rounded_up(1e-5), rounded_up(2.000001)
    ('0.94692', '1e-05', '2.0001')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float) -> str:
    """Five digits, never more than the value: what was found to keep a budget must keep it as printed.

    >>> rounded_down(0.010518999)
    '0.010518'
    """
    return _rounded(value, 5, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(repr(float(value)))):.{digits}g}"
