"""``noisette ledger``: show the releases on a data set, compute their cost, record one, repair a file after a crash."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import DiscreteGaussian, DpAmount, Events, Gaussian, GroupPrivacy, Laplace, Ledger, ZcdpAmount
from noisette.accounting.budget import NOISE_TAIL
from noisette.accounting.events import Event, check_events, facts_of
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.ledger import LEDGER_FILE
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.account import accountant_facts, costs, in_words, json_number, rounded_up
from noisette.cli.options import plain_errors
from noisette.errors import UnsupportedEventError


def ledger_at(place: Path) -> Path:
    """The ledger at this place, or of the run that was to be written there and has not ended.

    Where the place alone does not say which ledger is meant, a line on standard error does.

    Raises:
        ValueError: there is no ledger at the place, and several runs for it have not ended.
    """
    from noisette.training.run_folder import in_words, unfinished_runs

    named = place / LEDGER_FILE if place.is_dir() else place
    unfinished = unfinished_runs(place.parent if place.name == LEDGER_FILE else place)
    ledgers = [folder / LEDGER_FILE for folder in unfinished if (folder / LEDGER_FILE).is_file()]
    if not named.exists() and len(ledgers) > 1:
        folders = ", ".join(shlex.quote(str(ledger.parent)) for ledger in ledgers)
        raise ValueError(
            f"there is no ledger at {named}, but several runs for it have not ended; name one of {folders}"
        )
    used = named if named.exists() or not ledgers else ledgers[0]
    if ledgers:
        typer.echo("\n".join([f"The ledger is {used}", *map(in_words, unfinished)]), err=True)
    return used


ledger = typer.Typer(
    name="ledger",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show the releases on a data set, compute their privacy cost, record one, or repair a ledger after a crash.",
)


def _stated(metavar: str | None, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel="The release: give one of")


@ledger.command()
@plain_errors()
def charge(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            help="A run folder, also that of a run which was cut off, or a ledger file, also a new one.",
            show_default=False,
        ),
    ],
    *,
    zcdp: Annotated[float | None, _stated("RHO", "Stated as zCDP: rho above 0.")] = None,
    epsilon: Annotated[
        float | None, _stated(None, "Stated as epsilon, with --delta where it is not 0: 0 or more.")
    ] = None,
    laplace: Annotated[
        float | None, _stated("NOISE", "Laplace noise of this scale, in units of the L1 sensitivity: 1 / epsilon.")
    ] = None,
    discrete_gaussian: Annotated[
        float | None,
        _stated("NOISE", "A count with discrete Gaussian noise of this parameter sigma, where one record counts 1."),
    ] = None,
    gaussian: Annotated[
        float | None,
        _stated("NOISE", "Gaussian noise on a sum over all records, in units of its L2 sensitivity to one record."),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of --epsilon: 0 or more, below 1.")] = 0.0,
    tool: Annotated[str, typer.Option(help="What was released and by which tool, for --zcdp and --epsilon.")] = "",
    times: Annotated[int, typer.Option(help="How many such releases: at least 1.")] = 1,
    dataset: Annotated[
        str | None, typer.Option(help="The name of the data set, for a new ledger.", show_default=False)
    ] = None,
) -> None:
    """Record a release by another mechanism or another tool, so that the ledger holds everything on its data set.

    Run it before the release. It is never taken back, and nothing checks that what another tool states is true.

    Example: noisette ledger charge run --zcdp 0.1 --tool "census tables"
    """
    given = {
        "zcdp": zcdp,
        "epsilon": epsilon,
        "laplace": laplace,
        "discrete_gaussian": discrete_gaussian,
        "gaussian": gaussian,
    }
    checks.all_of(
        partial(checks.exactly_one, **given),
        partial(checks.count, times=times),
        lambda: _check_amount(epsilon, delta, zcdp, tool),
    )
    event = next(_RELEASES[name](value, delta, tool) for name, value in given.items() if value is not None)
    path = ledger_at(place)
    with Ledger(path, dataset=_dataset(path, dataset)) as ledger:
        ledger.charge(event, times)
        typer.echo(f"{path}: recorded {times:,} × {in_words(event)} on data set {ledger.dataset!r}")


_RELEASES: dict[str, Callable[[float, float, str], Event]] = {
    "zcdp": lambda rho, _, tool: ZcdpAmount(rho, tool),
    "epsilon": lambda epsilon, delta, tool: DpAmount(epsilon, delta, tool),
    "laplace": lambda noise, *_: Laplace(noise),
    "discrete_gaussian": lambda noise, *_: DiscreteGaussian(noise),
    "gaussian": lambda noise, *_: Gaussian(noise),
}


def _check_amount(epsilon: float | None, delta: float, zcdp: float | None, tool: str) -> None:
    if delta and epsilon is None:
        raise ValueError(f"delta={delta} belongs to an epsilon; give both, or leave delta out")
    if tool and epsilon is None and zcdp is None:
        raise ValueError(f"tool={tool!r} belongs to an amount that a tool states: give zcdp or epsilon")


def _dataset(path: Path, given: str | None) -> str:
    """The name of the data set: that of the ledger, or the given one where it begins a ledger.

    Raises:
        ValueError: a new ledger has no name, or a ledger has another one.
    """
    known = Ledger.read(path) if path.is_file() else None
    if known is None or not known.entries:
        if given is None:
            raise ValueError(f"there is no ledger at {path}; to begin one, name its data set with --dataset")
        return given
    if given not in (None, known.dataset):
        raise ValueError(f"{path} is the ledger of data set {known.dataset!r}, not of {given!r}; leave out --dataset")
    return known.dataset


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
        mechanisms = [facts_of(event) | tally._asdict() | {"paid": tally.paid} for event, tally in read.tallies.items()]
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
        table.add_row(in_words(event), *(f"{number:,}" if number else "" for number in (*tally, tally.paid)))
    below = [("neighbouring", "; ".join(relations) or "no releases"), ("head", read.head or "no line yet")]
    _print(table, [("data set", read.dataset), *below])


def _print(table: Table, below: Sequence[tuple[str, str]]) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if table.row_count:
        console.print(table)
        console.print()
    facts = Table.grid(padding=(0, 2))
    for row in below:
        facts.add_row(*row)
    console.print(facts)


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

    Each accountant tells the cost as if all had been declared together. Of several declarations an odometer tells what
    holds whatever was chosen after looking at earlier results.

    Example: noisette ledger price run --delta 1e-5
    """
    checks.all_of(partial(checks.open_fraction, delta=delta), partial(checks.count, group_size=group_size))
    path = ledger_at(place)
    read = Ledger.read(path)
    events: Events = read.events
    declarations = len(read.declarations)
    if group_size > 1:
        events = {GroupPrivacy(event, group_size): times for event, times in events.items()}  # pyright: ignore[reportArgumentType] - it refuses unsupported events
    check_events(events)
    left = delta - NOISE_TAIL
    found = costs(
        events,
        lambda curve: curve.epsilon(delta=left) if left > 0 else math.inf,
        [accountant] if accountant else ACCOUNTANTS,
    )
    epsilons = {name: cost for name, cost in found.items() if isinstance(cost, float)}
    refusals = {name: str(cost) for name, cost in found.items() if not isinstance(cost, float)}
    if not epsilons:
        raise UnsupportedEventError("\n".join(refusals.values()))
    adaptive = _whatever_was_chosen(events, left) if declarations > 1 else None
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
            "declarations": declarations,
            "whatever_was_chosen": json_number(adaptive) if isinstance(adaptive, float) else adaptive,
        }
        typer.echo(json.dumps(facts))
        return
    table = Table("accountant", "epsilon", "", box=None, pad_edge=False, header_style="bold")
    for name, epsilon in epsilons.items():
        table.add_row(name, rounded_up(epsilon), ACCOUNTANTS[name].description)
    together: list[tuple[str, str]] = []
    if adaptive is not None:
        shown = rounded_up(adaptive) if isinstance(adaptive, float) else "not supported"
        table.add_row(RenyiOdometer.name, shown, RenyiOdometer.description)
        together = [
            ("declarations", f"{declarations}; the accountants take them as declared together: see the odometer")
        ]
    for name in refusals:  # the reason is printed where one accountant is chosen
        table.add_row(name, "not supported", ACCOUNTANTS[name].description)
    tail = f"the end of the noise's tail may take {NOISE_TAIL:g} of delta, so give a larger one"
    below = [("delta", f"{delta:g}"), *([("", tail)] if left <= 0 else [])]
    _print(table, [*below, *together, ("neighbouring", relation), ("data set", read.dataset)])


def _whatever_was_chosen(events: Events, delta: float) -> float | str:
    """Epsilon where each declaration may have been chosen by the results before it, or why it is not known."""
    try:
        return RenyiOdometer().compose(events).epsilon(delta=delta) if delta > 0 else math.inf
    except UnsupportedEventError as error:
        return str(error)


@ledger.command()
@plain_errors()
def repair(place: Place) -> None:
    """Drop a last line that a crash cut off. No other damage is repaired; the privacy cost does not decrease.

    Example: noisette ledger repair run
    """
    path = ledger_at(place)
    repaired = Ledger.repair(path)
    typer.echo(f"{path}: the last line was cut off and is repaired" if repaired else f"{path}: nothing to repair")
