"""``noisette ledger``: show a ledger, compute its privacy cost, and repair it after a crash."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import (
    Events,
    GroupPrivacy,
    Ledger,
)
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.accounting.budget import NOISE_TAIL
from noisette.accounting.events import check_events
from noisette.accounting.serialization import facts_of
from noisette.cli import options
from noisette.cli.errors import plain_errors
from noisette.cli.event_words import in_words
from noisette.cli.ledger_charge import charge
from noisette.cli.ledger_place import ledger_at
from noisette.cli.privacy_cost import accountant_facts, rounded_up
from noisette.errors import UnsupportedEventError

ledger = typer.Typer(
    name="ledger",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show the releases on a data set, compute their privacy cost, record one, or repair a ledger after a crash.",
)
ledger.command()(charge)

Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE",
        help="A run folder, also that of a run which was cut off, or a ledger file.",
        show_default=False,
    ),
]
GroupSize = Annotated[
    int,
    typer.Option(
        max=100_000, help="Records that are added or removed together, such as all records of one person: at least 1."
    ),
]


@ledger.command()
@plain_errors()
def show(place: Place, *, as_json: options.AsJson = False) -> None:
    """Show a ledger: each mechanism, and how often it was reserved, committed and given back.

    Example: noisette ledger show run
    """
    path = ledger_at(place)
    read = Ledger.read(path)
    relations = sorted({event.relation for event in read.events})
    if as_json:
        mechanisms = [facts_of(event) | asdict(tally) | {"paid": tally.paid} for event, tally in read.tallies.items()]
        facts = {
            "ledger": str(path),
            "dataset": read.dataset,
            "neighbouring": relations,
            "head": read.head,
            "mechanisms": mechanisms,
        }
        typer.echo(json.dumps(facts))
        return
    table = Table("mechanism", box=None, pad_edge=False, header_style="bold")
    for heading in ("reserved", "committed", "given back", "charged", "counted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for event, tally in read.tallies.items():
        numbers = (tally.reserved, tally.committed, tally.given_back, tally.charged, tally.paid)
        table.add_row(in_words(event), *(f"{number:,}" if number else "" for number in numbers))
    below = Table.grid(padding=(0, 2))
    below.add_row("data set", read.dataset)
    below.add_row("neighbouring", "; ".join(relations) or "no releases")
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
    delta: Annotated[float, options.DELTA],
    accountant: options.OneOrAllAccountants = None,
    group_size: GroupSize = 1,
    as_json: options.AsJson = False,
) -> None:
    """Compute the privacy cost of all releases in a ledger: every run, query and projection on its data set.

    Example: noisette ledger price run --delta 1e-5
    """
    checks.all_of(partial(checks.open_fraction, delta=delta), partial(checks.count, group_size=group_size))
    path = ledger_at(place)
    read = Ledger.read(path)
    events = _for_group(read.events, group_size)
    check_events(events)
    epsilons, refusals = _compose(events, delta - NOISE_TAIL, accountant)
    relation = "; ".join({event.relation for event in events}) or "no releases"
    if as_json:
        facts = {
            "delta": delta,
            "neighbouring": relation,
            "ledger": str(path),
            "dataset": read.dataset,
            "head": read.head,
            "prices": [accountant_facts(name, epsilon) for name, epsilon in epsilons.items()],
            "no_price": refusals,
        }
        typer.echo(json.dumps(facts))
        return
    table = Table("accountant", "epsilon", "", box=None, pad_edge=False, header_style="bold")
    for name, epsilon in epsilons.items():
        table.add_row(name, rounded_up(epsilon), ACCOUNTANTS[name].description)
    for name in refusals:  # the reason is printed where one accountant is chosen
        table.add_row(name, "not supported", ACCOUNTANTS[name].description)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(table)
    below = Table.grid(padding=(0, 2))
    below.add_row("delta", f"{delta:g}")
    if delta <= NOISE_TAIL:
        below.add_row("", f"the end of the noise's tail may take {NOISE_TAIL:g} of delta, so give a larger one")
    below.add_row("neighbouring", relation)
    below.add_row("data set", read.dataset)
    console.print()
    console.print(below)


@ledger.command()
@plain_errors()
def repair(place: Place) -> None:
    """Drop a last line that a crash cut off. No other damage is repaired; the privacy cost does not decrease.

    Example: noisette ledger repair run
    """
    path = ledger_at(place)
    repaired = Ledger.repair(path)
    typer.echo(f"{path}: the last line was cut off and is repaired" if repaired else f"{path}: nothing to repair")


def _for_group(events: Events, records: int) -> Events:
    return events if records == 1 else {GroupPrivacy(event, records): times for event, times in events.items()}  # pyright: ignore[reportArgumentType] - it refuses unsupported events


def _compose(events: Events, delta: float, chosen: str | None) -> tuple[dict[str, float], dict[str, str]]:
    """Epsilon by each accountant that supports the events, and the reason of each that does not.

    Epsilon is infinite where no delta is left.

    Raises:
        UnsupportedEventError: the chosen accountant does not support the events, or no accountant does.
    """
    epsilons: dict[str, float] = {}
    refusals: dict[str, str] = {}
    for name in [chosen] if chosen else ACCOUNTANTS:
        try:
            curve = ACCOUNTANTS[name].compose(events)
            epsilons[name] = curve.epsilon(delta=delta) if delta > 0 else math.inf
        except UnsupportedEventError as refusal:
            refusals[name] = str(refusal)
    if not epsilons:
        raise UnsupportedEventError("\n".join(refusals.values()))
    return epsilons, refusals
