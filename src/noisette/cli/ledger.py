"""``noisette ledger``: show the releases on a data set, compute their cost, record one, repair a file after a crash."""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisette.accounting import Accountant, DiscreteGaussian, DpAmount, Event, Gaussian, Laplace, Ledger, Neighbouring
from noisette.accounting.calibrate import NOISE_TAIL, check_ranges
from noisette.accounting.events import ZcdpAmount, facts_of
from noisette.accounting.filters import RenyiOdometer, check_one_relation, curve_for
from noisette.accounting.ledger import LEDGER_FILE
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli.account import in_words, json_number, rounded_up
from noisette.cli.options import AsJson, OneOrAllAccountants, at_most, check_accountant, option, plain_errors
from noisette.errors import UnsupportedEventError, all_of, count, exactly_one
from noisette.training import run_folder


def ledger_at(place: Path) -> Path:
    """The ledger at this place, or of the one run for it that has not ended, which is said on standard error."""
    named = place / LEDGER_FILE if place.is_dir() else place
    unfinished = run_folder.unfinished_runs(place.parent if place.name == LEDGER_FILE else place)
    ledgers = [folder / LEDGER_FILE for folder in unfinished if (folder / LEDGER_FILE).is_file()]
    if not named.exists() and len(ledgers) > 1:
        places = ", ".join(shlex.quote(str(ledger.parent)) for ledger in ledgers)
        raise ValueError(f"there is no ledger at {named}, but several runs for it have not ended; name one of {places}")
    used = named if named.exists() or not ledgers else ledgers[0]
    if ledgers:
        typer.echo("\n".join([f"The ledger is {used}", *map(run_folder.in_words, unfinished)]), err=True)
    return used


ledger = typer.Typer(
    name="ledger",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show the releases on a data set, compute their privacy cost, record one, or repair a ledger after a crash.",
)


_stated = partial(option, panel="The release: give one of")
_PLACE = "A run folder, also that of a run which was cut off, or a ledger file, which a charge may begin."
_LAPLACE = "Laplace noise of this scale, in units of the L1 sensitivity: 1 / epsilon."
_DISCRETE = "A count with discrete Gaussian noise of this parameter sigma, where one record counts 1."
_GAUSSIAN = "Gaussian noise on a sum over all records, in units of its L2 sensitivity."
_TOGETHER = "Records, or users, that are added or removed together."
_OF_USER = "The most records of a user: the cost is for users, also of releases that are stated for records."
Place = Annotated[Path, typer.Argument(metavar="DIR|FILE", help=_PLACE, show_default=False)]


def _neighbouring(text: str) -> Neighbouring:
    """The relation that ``--per`` names."""
    number, _, unit = text.rpartition("-")
    match unit, number:
        case (("record" | "user"), ""):
            return Neighbouring(unit)
        case "record", "replaced":
            return Neighbouring.REPLACE_ONE
        case (("records" | "users"), number) if number.isdecimal() and int(number) > 1:
            return Neighbouring(unit.removesuffix("s"), int(number))
    raise typer.BadParameter(f"{text!r} is not one of record, user, replaced-record, 3-records, 3-users.")


_WHOM = "For whom it is stated: record, user (all records of one person), replaced-record, or a group as 3-records."
_PER = typer.Option(parser=_neighbouring, metavar="UNIT", help=_WHOM, show_default="record")


@ledger.command()
@plain_errors()
def charge(
    place: Place,
    *,
    zcdp: Annotated[float | None, _stated("F", "Stated as zCDP: rho above 0.")] = None,
    epsilon: Annotated[float | None, _stated("F", "Stated as epsilon, with --delta where it is not 0.")] = None,
    laplace: Annotated[float | None, _stated("F", _LAPLACE)] = None,
    discrete_gaussian: Annotated[float | None, _stated("F", _DISCRETE)] = None,
    gaussian: Annotated[float | None, _stated("F", _GAUSSIAN)] = None,
    delta: Annotated[float, option("F", "The delta of --epsilon: 0 or more, below 1.")] = 0.0,
    per: Annotated[Neighbouring | None, _PER] = None,
    tool: Annotated[str, typer.Option(help="What was released and by which tool, for --zcdp and --epsilon.")] = "",
    times: Annotated[int, option("N", "How many such releases: at least 1.")] = 1,
    dataset: Annotated[str | None, typer.Option(help="The name of the data set, for a new ledger.")] = None,
) -> None:
    """Record a release by another mechanism or another tool, so that the ledger holds everything on its data set.

    Run it before the release. It is never taken back, and nothing checks that what another tool states is true.

    Example: noisette ledger charge run --zcdp 0.1 --tool "census tables"
    """
    amounts: dict[str, tuple[Callable[..., Event], float | None]] = {
        "zcdp": (partial(ZcdpAmount, tool=tool), zcdp),
        "epsilon": (partial(DpAmount, delta=delta, tool=tool), epsilon),
        "laplace": (Laplace, laplace),
        "discrete_gaussian": (DiscreteGaussian, discrete_gaussian),
        "gaussian": (Gaussian, gaussian),
    }
    relation = per or Neighbouring.ADD_OR_REMOVE_ONE
    *events, _, _ = all_of(
        *(partial(make, amount, neighbouring=relation) for make, amount in amounts.values() if amount is not None),
        partial(exactly_one, **{name: amount for name, (_, amount) in amounts.items()}),
        partial(count, times=times),
    )
    [event] = events
    if delta and epsilon is None:
        raise ValueError(f"delta={delta} belongs to an epsilon; give both, or leave delta out")
    if tool and epsilon is None and zcdp is None:
        raise ValueError(f"tool={tool!r} belongs to an amount that a tool states: give zcdp or epsilon")
    path = ledger_at(place)
    begun = Ledger.read(path) if path.is_file() else Ledger()
    name = begun.dataset if begun.entries else dataset
    if name is None:
        raise ValueError(f"there is no ledger at {path}; to begin one, name its data set with --dataset")
    if dataset not in (None, name):
        raise ValueError(f"{path} is the ledger of data set {name!r}, not of {dataset!r}; leave out --dataset")
    with Ledger(path, dataset=name) as ledger:
        ledger.charge(event, times, other_neighbours=per is not None)
        typer.echo(f"{path}: recorded {times:,} × {in_words(event)} on data set {ledger.dataset!r}")


def _read(place: Path) -> tuple[Path, Ledger, dict[str, str]]:
    """The path of a ledger, what it holds, and whether the run beside it is signed, if one has ended there."""
    path = ledger_at(place)
    if not path.exists():
        raise ValueError(f"there is no ledger at {path}; give the folder of a run, or its {LEDGER_FILE}")
    signed = {}
    if (path.parent / "run.json").exists():
        signed = {"signature": run_folder.signature_in_words(run_folder.sealed_facts(path.parent))}
    return path, Ledger.read(path), signed


@ledger.command()
@plain_errors()
def show(place: Place, *, as_json: AsJson = False) -> None:
    """Show a ledger: each mechanism, and how often it was reserved, committed and given back.

    Example: noisette ledger show run
    """
    path, read, signature = _read(place)
    relations = sorted({event.relation for event in read.events})
    if as_json:
        mechanisms = [facts_of(event) | tally._asdict() | {"paid": tally.paid} for event, tally in read.tallies.items()]
        facts = {"ledger": str(path), "dataset": read.dataset, "neighbouring": relations, "head": read.head} | signature
        typer.echo(json.dumps(facts | {"mechanisms": mechanisms}))
        return
    table = Table("mechanism", box=None, pad_edge=False, header_style="bold")
    for heading in ("reserved", "committed", "given back", "charged", "counted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for event, tally in read.tallies.items():
        table.add_row(in_words(event), *(f"{number:,}" if number else "" for number in (*tally, tally.paid)))
    below = [("neighbouring", "; ".join(relations) or "no releases"), ("head", read.head or "no line yet")]
    _print(table, [("data set", read.dataset), *below, *signature.items()])


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
    delta: Annotated[float | None, option("F", "The delta of epsilon.", "that of the run")] = None,
    accountant: OneOrAllAccountants = None,
    group_size: Annotated[int, option("N", _TOGETHER)] = 1,
    records_per_user: Annotated[int | None, option("N", _OF_USER)] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the privacy cost of all releases in a ledger: every run, query and projection on its data set.

    Each accountant tells the cost as if all had been declared together. Of several declarations an odometer tells what
    holds whatever was chosen after looking at earlier results.

    Example: noisette ledger price run
    """
    together = {"group_size": group_size} if records_per_user is None else {"records_per_user": records_per_user}
    *_, (path, read, signature) = all_of(
        partial(check_ranges, delta=delta),
        partial(check_accountant, accountant),
        partial(count, **together),
        partial(at_most, 100_000, **together),
        partial(_read, place),
    )
    if records_per_user is not None and group_size != 1:
        raise ValueError("give group_size or records_per_user, not both")
    delta = _delta_of_run(path) if delta is None else delta
    events, declarations = read.events, len(read.declarations)
    neighbouring = Neighbouring.ADD_OR_REMOVE_USER
    if records_per_user is None:
        check_one_relation(events)
        first = next((event.neighbouring for event in events), Neighbouring.ADD_OR_REMOVE_ONE)
        neighbouring = first.for_several(group_size)

    def cost(accountant: Accountant) -> float | str:
        """Epsilon, or why this accountant has none."""
        try:
            curve = curve_for(events, accountant, records_per_user or group_size, neighbouring)
            return curve.epsilon(delta=delta - NOISE_TAIL)
        except UnsupportedEventError as error:
            return str(error)

    names = [accountant] if accountant else list(ACCOUNTANTS)
    found = {name: cost(ACCOUNTANTS[name]) for name in names}
    adaptive = cost(RenyiOdometer()) if declarations > 1 else None
    epsilons = {name: value for name, value in found.items() if isinstance(value, float)}
    refusals = {name: value for name, value in found.items() if isinstance(value, str)}
    if not epsilons:
        raise UnsupportedEventError("\n".join(dict.fromkeys(refusals.values())))
    relation = str(neighbouring) if events else "no releases"
    if records_per_user is not None:
        relation += f" who has {records_per_user:,} or fewer"
    if as_json:
        facts = {
            "delta": delta,
            "neighbouring": relation,
            "ledger": str(path),
            "dataset": read.dataset,
            "head": read.head,
            "prices": [{"accountant": name, "epsilon": json_number(value)} for name, value in epsilons.items()],
            "no_price": refusals,
            "declarations": declarations,
            "whatever_was_chosen": json_number(adaptive) if isinstance(adaptive, float) else adaptive,
        }
        typer.echo(json.dumps(facts | signature))
        return
    table = Table("accountant", "epsilon", "", box=None, pad_edge=False, header_style="bold")
    rows = [(name, value, ACCOUNTANTS[name].description) for name, value in found.items()]
    below = [("delta", f"{delta:g}")]
    if adaptive is not None:
        rows.append((RenyiOdometer.name, adaptive, RenyiOdometer.description))
        taken = f"{declarations}; the accountants take them as declared together: see the odometer"
        below.append(("declarations", taken))
        if not isinstance(adaptive, float):
            below.append(("odometer", str(adaptive)))
    for name, value, description in rows:  # the reason is printed where one accountant is chosen
        table.add_row(name, rounded_up(value) if isinstance(value, float) else "not supported", description)
    if math.inf in epsilons.values():
        below.append(("", "inf: there is no guarantee at this delta, because noise is too small or amounts too large"))
    _print(table, [*below, ("neighbouring", relation), ("data set", read.dataset), *signature.items()])


@ledger.command()
@plain_errors()
def verify(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)],
    key: Annotated[Path, option("PUBLIC.pem", "The public Ed25519 key of who trained the model.")],
) -> None:
    """Check, without the data, that a run folder is as it was signed by `noisette train --sign`.

    Example: noisette ledger verify run --key public.pem
    """
    facts = run_folder.verify(place, key)
    grown = facts["private"] and Ledger.read(place / LEDGER_FILE).head != facts["ledger_head"]
    later = "; lines of its ledger that came later are not signed" if grown else ""
    typer.echo(f"{place}: signed with this key, and unchanged since{later}; card.md is not sealed")


def _delta_of_run(ledger: Path) -> float:
    for name in ("run.json", "checkpoint/settings.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads((ledger.parent / name).read_bytes())
            return float(facts.get("recipe", facts)["privacy"]["delta"])
    raise ValueError(f"no run beside {ledger} says at which delta: give --delta, such as --delta 1e-5")


@ledger.command()
@plain_errors()
def repair(place: Place) -> None:
    """Drop a last line that a crash cut off. No other damage is repaired; the privacy cost does not decrease.

    Example: noisette ledger repair run
    """
    path = ledger_at(place)
    done = "the last line was cut off and is repaired" if Ledger.repair(path) else "nothing to repair"
    typer.echo(f"{path}: {done}")
    if (path.parent / run_folder.RUN_FILE).exists():
        run_folder.sealed_facts(path.parent)
