"""``noisette ledger``: what stands in a ledger, what it costs, and how a crash's last line is mended."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette._internal import checks
from noisette.accounting import (
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Ledger,
    PoissonGaussian,
    RepeatAndSelect,
    tail_delta_of,
)
from noisette.accounting.events import Event, check_events
from noisette.accounting.ledger.ledger import LEDGER_FILE
from noisette.accounting.serialization import facts_of
from noisette.cli.accountants import ACCOUNTANTS, OPTIMISTIC, AccountantName
from noisette.cli.errors import plain_errors
from noisette.cli.prices import rounded_down, rounded_up
from noisette.errors import UnsupportedEventError

ledger = typer.Typer(
    name="ledger",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at what was spent on a data set, price it again, or mend what a crash cut off.",
)

Place = Annotated[Path, typer.Argument(metavar="DIR|FILE", help="A run folder, or a ledger file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]
Delta = Annotated[
    float,
    typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1."),
]
Chosen = Annotated[
    AccountantName | None,
    typer.Option("--accountant", help="What prices the releases. All that can, side by side, unless one is named."),
]
GroupSize = Annotated[
    int,
    typer.Option(
        max=100_000, help="Records that are added or removed together, such as all of one person: at least 1."
    ),
]


@ledger.command()
@plain_errors()
def show(place: Place, *, as_json: AsJson = False) -> None:
    """Show what stands in a ledger: each mechanism, how often it was reserved, happened, and was given back.

    Example: noisette ledger show run
    """
    path = _file(place)
    read = Ledger.read(path)
    relations = sorted({event.relation for event in read.events})
    if as_json:
        mechanisms = [facts_of(event) | asdict(tally) | {"paid": tally.paid} for event, tally in read.tallies.items()]
        facts = {"dataset": read.dataset, "neighbouring": relations, "head": read.head, "mechanisms": mechanisms}
        typer.echo(json.dumps(facts))
        return
    table = Table("mechanism", box=None, pad_edge=False, header_style="bold")
    for heading in ("reserved", "committed", "given back", "charged", "paid for"):
        table.add_column(heading, justify="right", no_wrap=True)
    for event, tally in read.tallies.items():
        numbers = (tally.reserved, tally.committed, tally.given_back, tally.charged, tally.paid)
        table.add_row(_in_words(event), *(f"{number:,}" if number else "" for number in numbers))
    below = Table.grid(padding=(0, 2))
    below.add_row("data set", read.dataset)
    below.add_row("neighbouring", "; ".join(relations) or "nothing was spent")
    below.add_row("head", read.head or "no line yet")
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if read.tallies:
        console.print(table)
        console.print()
    console.print(below)


@ledger.command()
@plain_errors()
def price(
    place: Place,
    *,
    delta: Delta,
    accountant: Chosen = None,
    group_size: GroupSize = 1,
    as_json: AsJson = False,
) -> None:
    """Say what all releases in a ledger cost together: every run, query and projection on its data set.

    Example: noisette ledger price run --delta 1e-5
    """
    checks.all_of(partial(checks.open_fraction, delta=delta), partial(checks.count, group_size=group_size))
    read = Ledger.read(_file(place))
    events = _seen_by_group(read.events, group_size)
    check_events(events)
    tail = tail_delta_of(events)
    prices, refusals = _prices(events, delta - tail, accountant)
    relation = "; ".join({event.relation for event in events}) or "nothing was spent"
    if as_json:
        facts = {
            "delta": delta,
            "tail_delta": tail,
            "neighbouring": relation,
            "dataset": read.dataset,
            "head": read.head,
            "prices": [_price_facts(name, epsilon) for name, epsilon in prices.items()],
            "no_price": refusals,
        }
        typer.echo(json.dumps(facts))
        return
    table = Table("accountant", "epsilon", "", box=None, pad_edge=False, header_style="bold")
    for name, epsilon in prices.items():
        table.add_row(name.value, rounded_up(epsilon), ACCOUNTANTS[name][1])
    for name in refusals:  # each says why when it is asked alone
        table.add_row(name.value, "no price", ACCOUNTANTS[name][1])
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(table)
    below = Table.grid(padding=(0, 2))
    below.add_row("delta", f"{delta:g}, of which {rounded_up(tail)} goes to the tail of the noise generator")
    below.add_row("neighbouring", relation)
    below.add_row("data set", read.dataset)
    console.print()
    console.print(below)


@ledger.command()
@plain_errors()
def repair(place: Place) -> None:
    """Drop a last line that a crash cut off. Nothing else is mended, and the price does not fall.

    Example: noisette ledger repair run
    """
    path = _file(place)
    mended = Ledger.repair(path)
    typer.echo(f"{path}: the last line was cut off, and is mended" if mended else f"{path}: nothing to repair")


def _file(place: Path) -> Path:
    return place / LEDGER_FILE if place.is_dir() else place


def _seen_by_group(events: Events, records: int) -> Events:
    return events if records == 1 else {GroupPrivacy(event, records): times for event, times in events.items()}  # pyright: ignore[reportArgumentType] - it refuses what has no group


def _prices(
    events: Events, delta: float, chosen: AccountantName | None
) -> tuple[dict[AccountantName, float], dict[AccountantName, str]]:
    """Epsilon by each accountant that has a price, infinite where no delta is left, and why the others have none.

    Raises:
        UnsupportedEventError: the one that was chosen has none, or none of all has.
    """
    prices: dict[AccountantName, float] = {}
    refusals: dict[AccountantName, str] = {}
    for name in [chosen] if chosen else AccountantName:
        try:
            curve = ACCOUNTANTS[name][0].compose(events)
            prices[name] = curve.epsilon(delta=delta) if delta > 0 else math.inf
        except UnsupportedEventError as refusal:
            refusals[name] = str(refusal)
    if not prices:
        raise UnsupportedEventError("\n".join(refusals.values()))
    return prices, refusals


def _price_facts(name: AccountantName, epsilon: float) -> dict[str, Any]:
    shown = epsilon if math.isfinite(epsilon) else str(epsilon)  # an infinite one is no JSON number; float() reads it
    return {"accountant": name.value, "epsilon": shown, "upper_bound": name not in OPTIMISTIC}


def _in_words(event: Event) -> str:
    """The mechanism and its numbers, rounded to five digits, never to its advantage."""
    match event:
        case Gaussian():
            return f"Gaussian, noise {rounded_down(event.noise_multiplier)}{_parts(event)}"
        case PoissonGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            return f"Poisson Gaussian, rate {rate}, noise {noise}{_parts(event)}"
        case FixedSizeGaussian():
            batch = f"{event.batch_size:,} of {event.size:,} records"
            return f"fixed-size Gaussian, {batch}, noise {rounded_down(event.noise_multiplier)}"
        case GroupPrivacy():
            return f"{_in_words(event.event)}, for a group of {event.records:,}"
        case RepeatAndSelect():
            run = " and ".join(f"{times:,} × {_in_words(of_one)}" for of_one, times in event.run)
            return f"best of about {rounded_up(event.mean)} runs (shape {event.shape:g}) of {run}"
        case _:
            raise AssertionError(f"{event!r} has no words")


def _parts(event: Gaussian | PoissonGaussian) -> str:
    return f" ({', '.join(name for name, _ in event.parts)})" if event.parts else ""
