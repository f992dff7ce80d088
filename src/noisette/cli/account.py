"""What events cost, and the noise or the number of steps that a budget allows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import (
    Accountant,
    PldAccountant,
    TradeOff,
    delta_for,
    epsilon_for,
    noise_multiplier_for,
    sampling_rate_for,
    steps_for,
)
from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.options import plain_errors
from noisette.errors import UnsupportedEventError

if TYPE_CHECKING:
    from noisette.training.report.figures import Cells, Panel

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
        from noisette.training.report.figures import Plot

        name, value = self._rows()[0]
        sought = "" if self.found in ("epsilon", "delta") else f"{name.capitalize()} {value}: "
        cost = f"ε = {_shown(self.epsilon, self.accountant)} at δ = {_shown(self.delta, self.accountant)}"
        title = f"{sought}{cost} after {self.steps:,} steps"
        description = ACCOUNTANTS[self.accountant].description
        lead = f"By the accountant {self.accountant} ({description}); {self.event.relation}."
        panels, tables = [self.curve()], [("The run", (), self._rows()), self.by_accountant()]
        if ACCOUNTANTS[self.accountant].upper_bound:
            from noisette.training.report.page import attack_panels, attack_rows

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
        from noisette.training.report.figures import BLUE, INK, Line, Panel

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


def in_words(event: Event) -> str:
    """The mechanism and its parameters in five digits, rounded in the direction of a larger privacy cost.

    >>> in_words(GroupPrivacy(PoissonGaussian(0.01, 4.0), records=3))
    'Poisson Gaussian, rate 0.01, noise 4, for a group of 3'
    """
    match event:
        case Gaussian() | Laplace() | DiscreteGaussian():
            return f"{event.mechanism}, noise {rounded_down(event.noise_multiplier)}{_parts(event)}"
        case PoissonGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            return f"Poisson Gaussian, rate {rate}, noise {noise}{_parts(event)}"
        case FixedSizeGaussian():
            batch = f"{event.batch_size:,} of {event.size:,} records"
            return f"fixed-size Gaussian, {batch}, noise {rounded_down(event.noise_multiplier)}"
        case TruncatedPoissonGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            batch = f"at most {event.largest_batch:,} of at most {event.most_records:,} records"
            return f"truncated Poisson Gaussian, rate {rate}, {batch}, noise {noise}{_parts(event)}"
        case BallsInBinsGaussian():
            noise = rounded_down(event.noise_multiplier)
            return f"balls-in-bins Gaussian, one of {event.bins:,} batches, noise {noise}{_parts(event)}"
        case BandedGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            return f"banded Gaussian, rate {rate}, rounds of {event.bands:,} steps, noise {noise}{_parts(event)}"
        case GroupPrivacy():
            return f"{in_words(event.event)}, for a group of {event.records:,}"
        case UserLevel():
            return f"{in_words(event.event)}, for a user of up to {event.records:,}"
        case RepeatAndSelect():
            run = " and ".join(f"{times:,} × {in_words(of_one)}" for of_one, times in event.run)
            return f"best of about {rounded_up(event.mean)} runs (shape {event.shape:g}) of {run}"
        case ZcdpAmount():
            return f"declared zCDP, rho {rounded_up(event.rho)}{_tool(event)}"
        case DpAmount():
            delta = f", delta {rounded_up(event.delta)}" if event.delta else ""
            return f"declared epsilon {rounded_up(event.epsilon)}{delta}{_tool(event)}"
        case _:
            raise AssertionError(f"{event!r} has no description")


def _parts(event: Event) -> str:
    parts: tuple[tuple[str, float], ...] = getattr(event, "parts", ())
    return f" ({', '.join(name for name, _ in parts)})" if parts else ""


def _tool(event: ZcdpAmount | DpAmount) -> str:
    return f" ({event.tool})" if event.tool else ""


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
        int,
        typer.Option(max=100_000, help="Records that one person may have: the guarantee covers all of them."),
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
    checks.all_of(
        partial(
            checks.exactly_one,
            sampling_rate=sampling_rate,
            expected_batch_size=expected_batch_size,
            batch_size=batch_size,
        ),
        partial(checks.exactly_one, steps=steps, epochs=epochs),
        partial(_check_batches, batch_size, expected_batch_size, size),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        partial(checks.count, group_size=group_size),
        partial(_check_group, batch_size, group_size),
        partial(_check_bands, batch_size, group_size, bands),
        partial(checks.positive, noise_multiplier=noise_multiplier),
        lambda: steps is None or checks.count(steps=steps),
        lambda: epochs is None or checks.positive(epochs=epochs),
        partial(checks.exactly_one, delta=delta, epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        partial(options.at_most, options.MOST_RECORDS, size=size, batch_size=batch_size),
        partial(options.check_plot, plot),
    )
    if expected_batch_size is not None:
        assert size is not None
        sampling_rate = expected_batch_size / size
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs / (sampling_rate or _share(batch_size, size))))
    options.at_most(options.MOST_STEPS, steps=steps)
    event: PoissonGaussian | BandedGaussian | FixedSizeGaussian | GroupPrivacy
    if sampling_rate is None:
        assert batch_size is not None
        assert size is not None
        event = FixedSizeGaussian(batch_size, size, noise_multiplier)
    elif bands is not None:
        event = BandedGaussian(sampling_rate, noise_multiplier, bands)
    else:
        event = PoissonGaussian(sampling_rate, noise_multiplier)
        if group_size > 1:
            event = GroupPrivacy(event, group_size)
    curve = ACCOUNTANTS[accountant].compose({event: steps})
    if delta is None:
        assert epsilon is not None
        cost = PrivacyCost(event, steps, accountant, epsilon, curve.delta(epsilon=epsilon), found="delta")
    else:
        cost = PrivacyCost(event, steps, accountant, curve.epsilon(delta=delta), delta, found="epsilon")
    cost.show(as_json=as_json, plot=plot, command="account")


def _share(batch_size: int | None, size: int | None) -> float:
    """The part of the records in a batch of a fixed size."""
    assert batch_size is not None
    assert size is not None
    return batch_size / size


def _check_batches(batch_size: int | None, expected_batch_size: float | None, size: int | None) -> None:
    if batch_size is None and expected_batch_size is None and size is None:
        return
    if size is None:
        raise ValueError("batch_size and expected_batch_size need size, the number of records in the data set")
    checks.count(size=size)
    if expected_batch_size is not None:
        checks.positive(expected_batch_size=expected_batch_size)
        if expected_batch_size > size:
            raise ValueError(f"expected a batch of at most all {size} records, got {expected_batch_size=:g}")
    elif batch_size is not None:
        FixedSizeGaussian(batch_size, size, noise_multiplier=1.0)  # checks its arguments
    else:
        raise ValueError("size needs batch_size or expected_batch_size")


def _check_bands(batch_size: int | None, group_size: int, bands: int | None) -> None:
    if bands is not None:
        checks.count(bands=bands)
        if batch_size is not None or group_size > 1:
            raise ValueError("bands are for Poisson batches of records; leave batch_size and group_size out, or bands")


def _check_group(batch_size: int | None, group_size: int) -> None:
    if batch_size is not None and group_size > 1:
        raise ValueError("a group_size above 1 needs a sampling_rate; batches of a fixed size are not supported")


_SOLVERS: dict[str, Callable[..., float]] = {
    "noise_multiplier": noise_multiplier_for,
    "steps": steps_for,
    "sampling_rate": sampling_rate_for,
    "epsilon": epsilon_for,
    "delta": delta_for,
}


@plain_errors()
def calibrate(
    *,
    epsilon: Annotated[float | None, options.EPSILON] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    sampling_rate: options.SamplingRate = None,
    noise_multiplier: Annotated[float | None, options.NOISE_MULTIPLIER] = None,
    steps: Annotated[int | None, options.STEPS] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
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
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        lambda: noise_multiplier is None or checks.positive(noise_multiplier=noise_multiplier),
        lambda: steps is None or checks.count(steps=steps),
        partial(_check_keeps_budgets, accountant),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
        partial(options.check_plot, plot),
    )
    _solve(given, accountant).show(as_json=as_json, plot=plot, command="calibrate")


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


def _solve(given: Mapping[str, float | None], name: str) -> PrivacyCost:
    """The run with its missing parameter, and its privacy cost: never above the budget."""
    accountant = ACCOUNTANTS[name]
    missing = next(parameter for parameter, value in given.items() if value is None)
    known = {parameter: value for parameter, value in given.items() if value is not None}
    run = known | {missing: _SOLVERS[missing](**known, accountant=accountant)}
    steps = int(run["steps"])
    if steps == 0:
        raise ValueError(
            f"by the {name} accountant one step costs more than epsilon={run['epsilon']} at delta="
            f"{run['delta']}; give more noise, a smaller sampling rate or a larger budget"
        )
    event = PoissonGaussian(run["sampling_rate"], run["noise_multiplier"])
    if missing in ("epsilon", "delta"):
        return PrivacyCost(event, steps, name, run["epsilon"], run["delta"], missing)
    epsilon = accountant.compose({event: steps}).epsilon(delta=run["delta"])
    return PrivacyCost(event, steps, name, epsilon, run["delta"], missing, budget=run["epsilon"])
