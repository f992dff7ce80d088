"""``noisette account`` and ``noisette calibrate``: what a run costs, and the parameter that a budget leaves open."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import (
    Accountant,
    BandedGaussian,
    Event,
    FixedSizeGaussian,
    GroupPrivacy,
    Neighbouring,
    PldAccountant,
    PoissonGaussian,
    RepeatAndSelect,
    TradeOff,
    UserLevel,
    noise_multiplier_for,
    sampling_rate_for,
    steps_for,
)
from noisette.accounting.calibrate import check_ranges, schedule
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.options import plain_errors
from noisette.errors import UnsupportedEventError

if TYPE_CHECKING:
    from noisette.training.report.figures import Cells, Panel

_VISIBLE = 1e-9  # of the last value of a line: a smaller delta would only lengthen the axis


@dataclass(frozen=True)
class PrivacyCost:
    """A run with its epsilon and delta, and which of its parameters was asked for."""

    event: Event
    steps: int
    accountant: str
    epsilon: float
    delta: float
    found: str

    @classmethod
    def of(cls, event: Event, steps: int, accountant: str, epsilon: float | None, delta: float | None) -> PrivacyCost:
        """The cost of these steps: epsilon at the delta, or where none is given delta at the epsilon."""
        curve = ACCOUNTANTS[accountant].compose({event: steps})
        if delta is not None:
            return cls(event, steps, accountant, curve.epsilon(delta=delta), delta, found="epsilon")
        assert epsilon is not None
        return cls(event, steps, accountant, epsilon, curve.delta(epsilon=epsilon), found="delta")

    def show(self, *, as_json: bool) -> None:
        """Print the result."""
        if as_json:
            typer.echo(json.dumps(self._facts()))
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        for k, row in enumerate(self._rows()):
            table.add_row(*row, style="bold" if k == 0 else None)
        Console(highlight=False, soft_wrap=True).print(table)

    @property
    def _parameters(self) -> dict[str, Any]:
        return (self.event.event if isinstance(self.event, GroupPrivacy) else self.event).parameters()

    def _facts(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            **self._parameters,
            "steps": self.steps,
            "accountant": self.accountant,
            "upper_bound": ACCOUNTANTS[self.accountant].upper_bound,
            "neighbouring": self.event.relation,
            "sampling": self.event.sampling,
        }

    def _rows(self) -> list[tuple[str, str]]:
        """Name and value of every parameter, the one that was asked for first."""
        given = self._parameters
        rows = {
            "epsilon": _shown(self.epsilon, self.accountant),
            "delta": _shown(self.delta, self.accountant),
            "noise_multiplier": rounded_up(given["noise_multiplier"]),
            "steps": f"{self.steps:,}",
        }
        rows = {**{name: f"{n:,}" if isinstance(n, int) else f"{n:.6g}" for name, n in given.items()}, **rows}
        if self.found == "sampling_rate":
            rows["sampling_rate"] = rounded_down(given["sampling_rate"])
        if isinstance(self.event, FixedSizeGaussian):
            rows["noise_multiplier"] += " × clipping norm"
        if isinstance(self.event, BandedGaussian):
            rows["bands"] += ": a round that was begun counts as a whole"
        rows |= {"sampling": self.event.sampling, "neighbouring": self.event.relation}
        rows["accountant"] = f"{self.accountant} ({ACCOUNTANTS[self.accountant].description})"
        first = dict.fromkeys([self.found, "epsilon", "delta", "noise_multiplier", "steps", *rows])
        return [(name.replace("_", " "), rows[name]) for name in first]

    def draw(self, path: Path) -> None:
        """Write a figure of epsilon over the steps and of what an attack can reach, or a page with tables too."""
        from noisette.training.report.figures import write_plot

        cost = f"ε = {_shown(self.epsilon, self.accountant)} at δ = {_shown(self.delta, self.accountant)}"
        accountant = ACCOUNTANTS[self.accountant]
        lead = f"By the accountant {self.accountant} ({accountant.description}); {self.event.relation}."
        panels, tables = [self._curve()], [("The run", (), self._rows()), self.by_accountant()]
        if accountant.upper_bound:
            from noisette.training.report.page import attack_panels, attack_rows

            attack = TradeOff(accountant.compose({self.event: self.steps}))
            panels += attack_panels(attack)
            tables.insert(1, (f"What any attack reaches at most ({self.event.relation})", (), attack_rows(attack)))
        title = f"{cost} after {self.steps:,} steps"
        write_plot(path, command="account", title=title, lead=lead, panels=panels, tables=tables)

    def by_accountant(self) -> Cells:
        """The table of this run's cost by every accountant."""
        rows = [
            (name, "not supported" if value is None else _shown(value, name), ACCOUNTANTS[name].description)
            for name, value in self.values().items()
        ]
        return f"{self._letter} of the same steps by every accountant", ("accountant", self._letter, ""), rows

    def values(self) -> dict[str, float | None]:
        """The cost of this run by every accountant; ``None`` where it does not support the event."""
        return {name: cost if isinstance(cost, float) else None for name, cost in self._costs(self.steps).items()}

    def _costs(self, steps: int) -> dict[str, float | UnsupportedEventError]:
        def cost(accountant: Accountant) -> float:
            curve = accountant.compose({self.event: steps})
            return curve.delta(epsilon=self.epsilon) if self.found == "delta" else curve.epsilon(delta=self.delta)

        return answers(cost, ACCOUNTANTS.values())

    def _curve(self) -> Panel:
        """Epsilon after part of the steps, or delta if that was asked for; this accountant's line is emphasised."""
        from noisette.training.report.figures import BLUE, INK, Line, Panel

        checkpoints = sorted({max(1, round(self.steps * 10 ** (-k / 4))) for k in range(9)})
        after = [self._costs(steps) for steps in checkpoints]
        lines = []
        for name, whole in after[-1].items():
            if isinstance(whole, float):
                parts = [cost[name] for cost in after]
                values = [part if isinstance(part, float) and part > _VISIBLE * whole else 0.0 for part in parts]
                colour, strength = (BLUE, 1.0) if name == self.accountant else (INK, 0.4)
                dashes = "-" if ACCOUNTANTS[name].upper_bound else ":"
                lines.append(Line(f"{name} {_shown(whole, name)}", checkpoints, values, colour, strength, dashes))
        fixed = f"ε = {self.epsilon:g}" if self.found == "delta" else f"δ = {self.delta:g}"
        return Panel(f"{self._letter} at {fixed}, by accountant", "steps", self._letter, lines)

    @property
    def _letter(self) -> str:
        return "δ" if self.found == "delta" else "ε"


def answers(
    ask: Callable[[Accountant], float], accountants: Iterable[Accountant]
) -> dict[str, float | UnsupportedEventError]:
    """The answer of each accountant by its name, or its error where it does not support the events."""
    found: dict[str, float | UnsupportedEventError] = {}
    for accountant in accountants:
        try:
            found[accountant.name] = ask(accountant)
        except UnsupportedEventError as error:
            found[accountant.name] = error
    return found


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
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"


def rounded_down(value: float) -> str:
    """The value in five digits, never larger: a parameter that keeps a budget must keep it as printed.

    >>> rounded_down(0.010518999)
    '0.010518'
    """
    return rounded_up(-value).removeprefix("-")


# The parameters of events in words, rounded in the direction of a larger privacy cost.
_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "sampling_rate": ("rate {}", rounded_up),
    "bins": ("one of {} batches", "{:,}".format),
    "bands": ("rounds of {} steps", "{:,}".format),
    "batch_size": ("batches of {}", "{:,}".format),
    "size": ("{} records", "{:,}".format),
    "largest_batch": ("batches of at most {}", "{:,}".format),
    "most_records": ("at most {} records", "{:,}".format),
    "noise_multiplier": ("noise {}", rounded_down),
    "rho": ("rho {}", rounded_up),
    "epsilon": ("epsilon {}", rounded_up),
    "delta": ("delta {}", rounded_up),
}


def in_words(event: Event) -> str:
    """The mechanism and its parameters in five digits, rounded in the direction of a larger privacy cost.

    >>> in_words(GroupPrivacy(PoissonGaussian(0.01, 4.0), records=3))
    'Poisson Gaussian, rate 0.01, noise 4, for a group of 3'
    """
    match event:
        case GroupPrivacy():
            return f"{in_words(event.event)}, for a group of {event.records:,}"
        case UserLevel():
            return f"{in_words(event.event)}, for a user of up to {event.records:,}"
        case RepeatAndSelect():
            run = " and ".join(f"{times:,} × {in_words(of_one)}" for of_one, times in event.run)
            return f"best of about {rounded_up(event.mean)} runs (shape {event.shape:g}) of {run}"
        case _:
            given = event.parameters()
            words = [text.format(form(given[name])) for name, (text, form) in _WORDS.items() if name in given]
            named = given.get("tool") or ", ".join(name for name, _ in given.get("parts", ()))
            usual = event.neighbouring == Neighbouring.ADD_OR_REMOVE_ONE
            return ", ".join([event.mechanism, *words, *([] if usual else [event.relation])]) + (
                f" ({named})" if named else ""
            )


@plain_errors()
def account(
    *,
    noise_multiplier: Annotated[float, options.NOISE],
    steps: Annotated[int | None, options.STEPS] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the declared size, instead of --steps: above 0.")
    ] = None,
    sampling_rate: options.SamplingRate = None,
    expected_batch_size: Annotated[
        float | None,
        typer.Option(help="Expected records in a Poisson batch, instead of a sampling rate; needs --size."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Records in each batch, drawn without replacement, instead of a sampling rate; needs --size. The "
            "guarantee is for replacing one record, the noise in units of the clipping norm."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Records in the data set, for --batch-size and --expected-batch-size.")
    ] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Compute delta at this epsilon, instead of epsilon at a delta: above 0.")
    ] = None,
    group_size: Annotated[
        int, typer.Option(max=100_000, help="Records that one person may have: the guarantee covers all of them.")
    ] = 1,
    bands: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Steps over which noise is correlated, with cyclic batches; needs a sampling rate."
        ),
    ] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
) -> None:
    """Compute the privacy cost of a training run: epsilon at a delta, or delta at an epsilon.

    Example: noisette account --size 60000 --expected-batch-size 600 --epochs 60 --noise 1.3 --delta 1e-5
    """
    rates = {"sampling_rate": sampling_rate, "expected_batch_size": expected_batch_size, "batch_size": batch_size}
    numbers = {"steps": steps, "epochs": epochs, "noise_multiplier": noise_multiplier, "delta": delta}
    numbers |= {"epsilon": epsilon, "size": size, "group_size": group_size, "bands": bands}
    checks.all_of(
        partial(checks.exactly_one, **rates),
        partial(checks.exactly_one, steps=steps, epochs=epochs),
        partial(checks.exactly_one, delta=delta, epsilon=epsilon),
        partial(check_ranges, **rates, **numbers),
        partial(_check_batches, batch_size, expected_batch_size, size, group_size, bands),
        partial(options.at_most, options.MOST_RECORDS, size=size, batch_size=batch_size),
        partial(options.check_plot, plot),
    )
    rate, steps = schedule(batch_size or expected_batch_size or 0, sampling_rate, steps, size, epochs)
    options.at_most(options.MOST_STEPS, steps=steps)
    event: Event = PoissonGaussian(rate, noise_multiplier)
    if batch_size is not None and size is not None:
        event = FixedSizeGaussian(batch_size, size, noise_multiplier)
    elif bands is not None:
        event = BandedGaussian(rate, noise_multiplier, bands)
    elif group_size > 1:
        event = GroupPrivacy(PoissonGaussian(rate, noise_multiplier), group_size)
    cost = PrivacyCost.of(event, steps, accountant, epsilon, delta)
    if plot is not None:
        cost.draw(plot)
    cost.show(as_json=as_json)


def _check_batches(
    batch_size: int | None, expected_batch_size: float | None, size: int | None, group_size: int, bands: int | None
) -> None:
    batch = expected_batch_size if batch_size is None else batch_size
    if batch is None and size is not None:
        raise ValueError("size needs batch_size or expected_batch_size")
    if batch is not None and size is None:
        raise ValueError("batch_size and expected_batch_size need size, the number of records in the data set")
    if batch is not None and size is not None and batch > size:
        raise ValueError(f"expected a batch of at most all {size} records, got {batch:g}")
    if bands is not None and (batch_size is not None or group_size > 1):
        raise ValueError("bands are for Poisson batches of records; leave batch_size and group_size out, or bands")
    if batch_size is not None and group_size > 1:
        raise ValueError("a group_size above 1 needs a sampling_rate; batches of a fixed size are not supported")


@plain_errors()
def calibrate(
    *,
    epsilon: Annotated[float | None, options.EPSILON] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    sampling_rate: options.SamplingRate = None,
    noise_multiplier: Annotated[float | None, options.NOISE] = None,
    steps: Annotated[int | None, options.STEPS] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
) -> None:
    """Solve for the missing parameter: give four of epsilon, delta, sampling rate, noise multiplier and steps.

    The result is the least noise, the most steps or the largest sampling rate that keep the budget, or the least
    epsilon or delta.
    Example: noisette calibrate --epsilon 3 --delta 1e-5 --sampling-rate 0.01 --steps 6000
    """
    given: dict[str, float | None] = {
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "epsilon": epsilon,
        "delta": delta,
    }
    checks.all_of(
        partial(_check_one_missing, given),
        partial(check_ranges, **given),
        partial(_check_keeps_budgets, accountant),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
    )
    run: dict[str, Any] = dict(given)
    missing = next(name for name, value in given.items() if value is None)
    if missing in _SOLVERS:
        del run[missing]
        run[missing] = _SOLVERS[missing](**run, accountant=ACCOUNTANTS[accountant])
    if run["steps"] == 0:
        raise ValueError(
            f"by the {accountant} accountant one step costs more than epsilon={epsilon} at delta={delta}; give more "
            "noise, a smaller sampling rate or a larger budget"
        )
    event = PoissonGaussian(run["sampling_rate"], run["noise_multiplier"])
    cost = PrivacyCost.of(event, run["steps"], accountant, epsilon, delta)
    (replace(cost, found=missing) if missing in _SOLVERS else cost).show(as_json=as_json)


_SOLVERS: dict[str, Callable[..., float]] = {
    "noise_multiplier": noise_multiplier_for,
    "steps": steps_for,
    "sampling_rate": sampling_rate_for,
}


def _check_one_missing(given: Mapping[str, float | None]) -> None:
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        raise ValueError(f"all of {', '.join(given)} are given; leave out the one to solve for")
    if len(missing) > 1:
        raise ValueError(f"{', '.join(missing)} are missing; give all of them but the one to solve for")


def _check_keeps_budgets(accountant: str) -> None:
    if not ACCOUNTANTS[accountant].upper_bound:
        raise ValueError(
            f"{accountant} is no upper bound: its result keeps no budget; choose another accountant, or compute its "
            "epsilon with noisette account"
        )
