"""``noisette plan``: the batch sizes, epochs and noise that a budget allows for a declared number of records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import Neighbouring, PldAccountant
from noisette.accounting.calibrate import LEAST_STEPS, NEARLY, Setting, check_ranges, recommended, within_budget
from noisette.cli import options
from noisette.cli.account import rounded_up
from noisette.cli.options import INTERRUPTED, plain_errors

_rounded = partial(rounded_up, digits=4)  # the accuracy of these epsilons
_positive = partial(options.numbers, example="1,2.5,10", above=0)


@plain_errors()
def plan(
    *,
    size: Annotated[int, typer.Option(help="Public number of training records. It need not be exact.")],
    epsilon: Annotated[float, options.EPSILON],
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail: above 0, below 1 / size.")],
    batch_sizes: Annotated[
        str | None, options.option("N,N,..", "Expected batch sizes.", "up to four, from √size upwards")
    ] = None,
    epochs: Annotated[str, options.option("F,F,..", "Passes over the declared size.")] = "10,20,40,80",
    as_json: options.AsJson = False,
) -> None:
    """Recommend a batch size, epochs and noise for a budget, beside the noise and signal of all others.

    It is the setting with the fewest epochs among those with nearly the largest total signal to noise. For settings
    that no number recommends, such as learning rates, `noisette search` has one privacy cost for several runs.
    Example: noisette plan --size 60000 --epsilon 3 --delta 1e-5
    """
    options.at_most(options.MOST_RECORDS, size=size)
    batch_sizes = _usual_batch_sizes(size) if batch_sizes is None else batch_sizes
    checks.all_of(
        partial(check_ranges, size=size, epsilon=epsilon, delta=delta),
        partial(options.whole_numbers, "batch-sizes", batch_sizes, "256,1024", most=size),
        partial(_positive, "epochs", epochs),
    )
    if delta >= 1 / size:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({1 / size:.2g}): releasing one record in the "
            "clear would satisfy it; choose a smaller delta"
        )
    sizes = sorted(set(options.whole_numbers("batch-sizes", batch_sizes, "256,1024", most=size)))
    passes = sorted(set(_positive("epochs", epochs)))
    options.at_most(options.MOST_STEPS, steps=max(passes) * size / sizes[0])
    try:
        searches = within_budget(size=size, epsilon=epsilon, delta=delta, batch_sizes=sizes, epochs=passes)
        terminal, number = Console(stderr=True), len(sizes) * len(passes)
        settings = list(track(searches, "noise for the budget", number, console=terminal, transient=True))
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    chosen = recommended(settings)
    if as_json:
        facts: dict[str, Any] = {"size": size, "epsilon": epsilon, "delta": delta, "accountant": PldAccountant.name}
        facts["neighbouring"] = str(Neighbouring.ADD_OR_REMOVE_ONE)
        facts["within_budget"] = [asdict(setting) | {"signal": setting.signal} for setting in settings]
        typer.echo(json.dumps(facts | {"chosen": asdict(chosen)}))
    else:
        _print(settings, chosen, size, epsilon)


def _usual_batch_sizes(size: int) -> str:
    """Powers of two from about the square root of the size, each four times the previous one."""
    least = round(math.log2(max(size, 1)) / 2)
    sizes = [2 ** (least + 2 * k) for k in range(4)]
    return ",".join(str(number) for number in sizes if number <= size) or "1"


def _print(settings: Sequence[Setting], chosen: Setting, size: int, epsilon: float) -> None:
    rows = {f"{size:,}": list(row) for size, row in groupby(settings, key=lambda setting: setting.batch_size)}
    most = max(setting.signal for setting in settings)
    epochs = list(dict.fromkeys(f"{setting.epochs:g} epochs" for setting in settings))
    recommendation = [
        ("batch size", f"{chosen.batch_size:,} expected; microbatches bound the memory"),
        ("epochs", f"{chosen.epochs:g}"),
        ("steps", f"{chosen.steps:,}"),
        ("noise multiplier", _rounded(chosen.noise_multiplier)),
        ("time", f"that of {chosen.epochs * size:.3g} gradients"),
        ("why", f"fewest epochs with {NEARLY:.0%} of the largest signal of all with {LEAST_STEPS} steps or more"),
        ("signal", f"{chosen.signal / most:.0%} of the largest in the table"),
    ]
    signal = [(name, *(f"{s.signal / most:.0%}" for s in row)) for name, row in rows.items()]
    noises = [
        (name, f"{row[0].sampling_rate:.3g}", *(_rounded(s.noise_multiplier) for s in row))
        for name, row in rows.items()
    ]
    signal_title = "Share of the largest total signal to noise, √steps × sampling rate / noise"
    console = Console(highlight=False, soft_wrap=True)
    for caption, headings, cells in (
        (f"Recommended for ε ≤ {epsilon:g}", (), recommendation),
        (signal_title, ("batch size", *epochs), signal),
        (f"Least noise multiplier that keeps ε ≤ {epsilon:g}", ("batch size", "sampling rate", *epochs), noises),
    ):
        table = Table(title=caption, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for k, heading in enumerate(headings):
            table.add_column(heading, justify="right" if k else "left", header_style="")
        for row in cells:
            table.add_row(*row)
        console.print(table)
        console.print()
