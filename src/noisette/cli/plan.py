"""``noisette plan``: the batch sizes, epochs and noise that a budget allows for a declared number of records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import PldAccountant, PoissonGaussian
from noisette.accounting.calibrate import (
    LEAST_STEPS,
    NEARLY,
    Setting,
    check_ranges,
    recommended,
    with_noise,
    within_budget,
)
from noisette.cli import options
from noisette.cli.account import PrivacyCost, accountant_facts, json_number, rounded_up
from noisette.cli.options import INTERRUPTED, plain_errors

if TYPE_CHECKING:
    from noisette.training.report.figures import Cells, Line

_rounded = partial(rounded_up, digits=4)  # the accuracy of these epsilons


@plain_errors()
def plan(
    *,
    size: Annotated[int, typer.Option(help="Public number of training records. It need not be exact.")],
    epsilon: Annotated[float, options.EPSILON],
    delta: Annotated[
        float, typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1 / size.")
    ],
    batch_sizes: Annotated[
        str | None, options.option("N,N,..", "Expected batch sizes.", "up to four, from √size upwards")
    ] = None,
    epochs: Annotated[str, options.option("F,F,..", "Passes over the declared size.")] = "10,20,40,80",
    noise: Annotated[
        str, options.option("F,F,..", "Noise multipliers whose epsilon is computed.")
    ] = "0.5,0.7,1,1.4,2,2.8,4,5.6,8",
    like: Annotated[
        Path | None, options.option("RUN", "A finished run of the model on this machine: for the time of training.")
    ] = None,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
) -> None:
    """Recommend a batch size, epochs and noise for a budget, beside the noise and signal of all others.

    It is the setting with the fewest epochs among those with nearly the largest total signal to noise. Epsilon is
    computed at its number of epochs for every noise multiplier, and for itself by every accountant. For settings that
    no number recommends, such as learning rates, `noisette search` has one privacy cost for several runs.
    Example: noisette plan --size 60000 --epsilon 3 --delta 1e-5
    """
    options.at_most(options.MOST_RECORDS, size=size)
    batch_sizes = _usual_batch_sizes(size) if batch_sizes is None else batch_sizes
    checks.all_of(
        partial(check_ranges, size=size, epsilon=epsilon, delta=delta),
        partial(_check_delta, delta, size),
        partial(options.whole_numbers, "batch-sizes", batch_sizes, "256,1024", most=size),
        partial(_numbers, "epochs", epochs),
        partial(_numbers, "noise", noise),
        partial(options.check_plot, plot),
    )
    sizes = sorted(set(options.whole_numbers("batch-sizes", batch_sizes, "256,1024", most=size)))
    options.at_most(options.MOST_STEPS, steps=max(_numbers("epochs", epochs)) * size / sizes[0])
    seconds = None if like is None else _seconds_per_example(like)
    try:
        found = _compute(size, epsilon, delta, sizes, _numbers("epochs", epochs), _numbers("noise", noise), seconds)
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if plot is not None:
        found.draw(plot)
    if as_json:
        typer.echo(json.dumps(found.facts()))
    else:
        found.print()


def _usual_batch_sizes(size: int) -> str:
    """Powers of two from about the square root of the size, each four times the previous one."""
    least = round(math.log2(max(size, 1)) / 2)
    sizes = [2 ** (least + 2 * k) for k in range(4)]
    return ",".join(str(number) for number in sizes if number <= size) or "1"


def _check_delta(delta: float, size: int) -> None:
    if size > 0 and 1 / size <= delta < 1:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({1 / size:.2g}): releasing one record in the "
            "clear would satisfy it; choose a smaller delta"
        )


def _numbers(option: str, given: str) -> list[float]:
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"expected --{option} as numbers above 0, such as 1,2.5,10, got {given!r}")
    return sorted(set(numbers))


def _seconds_per_example(run: Path) -> float:
    """The time that a finished run took for one example of a batch, from its ``run.json``."""
    path = run / "run.json"
    try:
        facts = json.loads(path.read_bytes())
        seconds = facts["seconds_per_step"] / facts["recipe"]["training"]["batch_size"]
        checks.positive(seconds_per_example=seconds)
    except FileNotFoundError:
        raise ValueError(f"{run} holds no run.json; give --like the folder of a finished run") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise ValueError(f"{path} states no time of a step; give --like the folder of a finished run") from None
    return seconds


@dataclass(frozen=True)
class _Found:
    """Settings that keep the budget, settings with every noise, and one setting with its cost by every accountant."""

    size: int
    epsilon: float
    delta: float
    affordable: Sequence[Setting]
    by_noise: Sequence[Setting]
    chosen: Setting
    seconds_per_example: float | None

    @property
    def _cost(self) -> PrivacyCost:
        event = PoissonGaussian(self.chosen.sampling_rate, self.chosen.noise_multiplier)
        steps, epsilon = self.chosen.steps, self.chosen.epsilon
        return PrivacyCost(event, steps, PldAccountant.name, epsilon, self.delta, "epsilon", budget=self.epsilon)

    @property
    def _seconds(self) -> float | None:
        """The time of the recommended setting on this machine, if a run told its speed."""
        if self.seconds_per_example is None:
            return None
        return self.chosen.steps * self.chosen.batch_size * self.seconds_per_example

    def facts(self) -> dict[str, Any]:
        """All results, for JSON."""
        cost = self._cost
        return {
            "size": self.size,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": cost.accountant,
            "neighbouring": cost.event.relation,
            "sampling": cost.event.sampling,
            "within_budget": [asdict(setting) | {"signal": setting.signal} for setting in self.affordable],
            "by_noise": [asdict(setting) | {"epsilon": json_number(setting.epsilon)} for setting in self.by_noise],
            "chosen": asdict(self.chosen),
            "chosen_seconds": self._seconds,
            "by_accountant": [accountant_facts(name, value) for name, value in cost.values().items()],
        }

    def print(self) -> None:
        """Print the tables on standard output."""
        console = Console(highlight=False, soft_wrap=True)
        for caption, headings, rows in self._tables():
            table = Table(title=caption, title_justify="left", title_style="bold", box=None, pad_edge=False)
            for k, heading in enumerate(headings):
                table.add_column(heading, justify="right" if k > 0 and heading else "left", header_style="")
            for row in rows:
                table.add_row(*row)
            console.print(table)
            console.print()

    def draw(self, path: Path) -> None:
        """Write the figure, or the page with figure and tables."""
        from noisette.training.report.figures import Panel, write_plot

        least_noise, by_noise, by_accountant = self._tables()[2:]
        title = f"Noise for ε = {self.epsilon:g} with {self.size:,} records"
        lead = (
            f"Poisson batches; {self._cost.event.relation}; δ = {self.delta:g}. Computed by the accountant "
            f"{PldAccountant.name}, and by the others for {by_accountant[0].split(': ')[1]}."
        )
        epsilons = _lines(self.by_noise, lambda setting: (setting.noise_multiplier, setting.epsilon))
        noises = _lines(self.affordable, lambda setting: (setting.epochs, setting.noise_multiplier))
        panels = [
            Panel(by_noise[0], "noise multiplier", "ε", epsilons, self.epsilon),
            Panel(least_noise[0], "epochs", "noise multiplier", noises),
            self._cost.curve(),
        ]
        write_plot(path, command="plan", title=title, lead=lead, panels=panels, tables=self._tables())

    def _tables(self) -> list[Cells]:
        chosen, rows = self.chosen, _by_batch(self.affordable)
        most = max(setting.signal for setting in self.affordable)
        epochs = [f"{setting.epochs:g} epochs" for setting in rows[0]]
        noise = _rounded(chosen.noise_multiplier)
        recommendation = [
            ("batch size", f"{chosen.batch_size:,} expected; microbatches bound the memory"),
            ("epochs", f"{chosen.epochs:g}"),
            ("steps", f"{chosen.steps:,}"),
            ("noise multiplier", noise),
            ("time", self._time()),
            ("why", f"fewest epochs with {NEARLY:.0%} of the largest signal of all with {LEAST_STEPS} steps or more"),
            ("signal", f"{chosen.signal / most:.0%} of the largest in the table"),
        ]
        signal = [(f"{row[0].batch_size:,}", *(f"{s.signal / most:.0%}" for s in row)) for row in rows]
        noises = [
            (f"{row[0].batch_size:,}", f"{row[0].sampling_rate:.3g}", *(_rounded(s.noise_multiplier) for s in row))
            for row in rows
        ]
        columns = _by_batch(self.by_noise)
        epsilons = [
            (f"{row[0].noise_multiplier:g}", *(_rounded(s.epsilon) for s in row)) for row in zip(*columns, strict=True)
        ]
        sizes = [f"batch {column[0].batch_size:,}" for column in columns]
        _, headings, by_accountant = self._cost.by_accountant()
        setting = f"batch {chosen.batch_size:,}, {chosen.epochs:g} epochs, noise {noise}"
        signal_title = "Share of the largest total signal to noise, √steps × sampling rate / noise"
        noise_title = f"Least noise multiplier that keeps ε ≤ {self.epsilon:g}"
        epsilon_title = f"ε after {chosen.epochs:g} epochs, by noise multiplier"
        return [
            (f"Recommended for ε ≤ {self.epsilon:g}", (), recommendation),
            (signal_title, ("batch size", *epochs), signal),
            (noise_title, ("batch size", "sampling rate", *epochs), noises),
            (epsilon_title, ("noise multiplier", *sizes), epsilons),
            (f"ε by every accountant: {setting}", headings, by_accountant),
        ]

    def _time(self) -> str:
        if self._seconds is None:
            gradients = self.chosen.epochs * self.size
            return f"that of {gradients:.3g} gradients; --like RUN tells how long, at the speed of a finished run"
        from noisette.training.report.facts import duration

        return f"about {duration(self._seconds)}, at the speed of the run given by --like"


def _compute(
    size: int,
    epsilon: float,
    delta: float,
    batch_sizes: Sequence[int],
    epochs: Sequence[float],
    noise_multipliers: Sequence[float],
    seconds_per_example: float | None,
) -> _Found:
    """Compute all settings, with a progress bar on standard error."""
    bar = partial(track, console=Console(stderr=True), transient=True)
    searches = within_budget(size=size, epsilon=epsilon, delta=delta, batch_sizes=batch_sizes, epochs=epochs)
    affordable = list(bar(searches, "noise for the budget", len(batch_sizes) * len(epochs)))
    chosen = recommended(affordable)
    costs = with_noise(
        size=size, delta=delta, batch_sizes=batch_sizes, epochs=chosen.epochs, noise_multipliers=noise_multipliers
    )
    by_noise = list(bar(costs, "epsilon by noise", len(batch_sizes) * len(noise_multipliers)))
    return _Found(size, epsilon, delta, affordable, by_noise, chosen, seconds_per_example)


def _by_batch(settings: Sequence[Setting]) -> list[list[Setting]]:
    """The settings in rows, one for each batch size."""
    return [list(row) for _, row in groupby(settings, key=lambda setting: setting.batch_size)]


def _lines(settings: Sequence[Setting], point: Callable[[Setting], tuple[float, float]]) -> list[Line]:
    """A line for each batch size; larger sizes have a stronger colour."""
    from noisette.training.report.figures import Line

    rows = _by_batch(settings)
    lines = []
    for k, row in enumerate(rows, 1):
        x, y = zip(*map(point, row), strict=True)
        lines.append(Line(f"batch {row[0].batch_size:,}", x, y, strength=0.3 + 0.7 * k / len(rows)))
    return lines
