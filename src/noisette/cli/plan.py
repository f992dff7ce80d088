"""``noisette plan``: the batch sizes, epochs and noise that a budget allows for a declared number of records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import PldAccountant, PoissonGaussian
from noisette.accounting.calibrate import LEAST_STEPS, NEARLY, Setting, check_ranges, recommended, settings
from noisette.cli import options
from noisette.cli.account import PrivacyCost, accountant_facts, json_number, rounded_up
from noisette.cli.options import INTERRUPTED, plain_errors

if TYPE_CHECKING:
    from noisette.training.report.figures import Cells

_rounded = partial(rounded_up, digits=4)  # the accuracy of these epsilons
_positive = partial(options.numbers, example="1,2.5,10", above=0)


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
    as_json: options.AsJson = False,
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
        partial(_positive, "epochs", epochs),
        partial(_positive, "noise", noise),
    )
    sizes = sorted(set(options.whole_numbers("batch-sizes", batch_sizes, "256,1024", most=size)))
    passes, noises = (sorted(set(_positive(name, given))) for name, given in (("epochs", epochs), ("noise", noise)))
    options.at_most(options.MOST_STEPS, steps=max(passes) * size / sizes[0])
    try:
        found = _compute(size, epsilon, delta, sizes, passes, noises)
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None
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


@dataclass(frozen=True)
class _Found:
    """Settings that keep the budget, settings with every noise, and one setting with its cost by every accountant."""

    size: int
    epsilon: float
    delta: float
    affordable: Sequence[Setting]
    by_noise: Sequence[Setting]
    chosen: Setting

    @property
    def _cost(self) -> PrivacyCost:
        event = PoissonGaussian(self.chosen.sampling_rate, self.chosen.noise_multiplier)
        return PrivacyCost(event, self.chosen.steps, PldAccountant.name, self.chosen.epsilon, self.delta, "epsilon")

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
            ("time", f"that of {chosen.epochs * self.size:.3g} gradients"),
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


def _compute(
    size: int,
    epsilon: float,
    delta: float,
    batch_sizes: Sequence[int],
    epochs: Sequence[float],
    noise_multipliers: Sequence[float],
) -> _Found:
    """Compute all settings, with a progress bar on standard error."""
    bar = partial(track, console=Console(stderr=True), transient=True)
    every = partial(settings, size=size, delta=delta, batch_sizes=batch_sizes)
    searches = every(epsilon=epsilon, epochs=epochs)
    affordable = list(bar(searches, "noise for the budget", len(batch_sizes) * len(epochs)))
    chosen = recommended(affordable)
    costs = every(epochs=[chosen.epochs], noise_multipliers=noise_multipliers)
    by_noise = list(bar(costs, "epsilon by noise", len(batch_sizes) * len(noise_multipliers)))
    return _Found(size, epsilon, delta, affordable, by_noise, chosen)


def _by_batch(settings: Sequence[Setting]) -> list[list[Setting]]:
    """The settings in rows, one for each batch size."""
    return [list(row) for _, row in groupby(settings, key=lambda setting: setting.batch_size)]
