"""``noisette ledger charge``: record a release by another mechanism or another tool."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from noisette import errors as checks
from noisette.accounting import DiscreteGaussian, DpAmount, Gaussian, Laplace, Ledger, ZcdpAmount
from noisette.accounting.events import Event
from noisette.cli.errors import plain_errors
from noisette.cli.event_words import in_words
from noisette.cli.ledger_place import ledger_at

_WHAT = "The release: give one of"


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
    zcdp: Annotated[
        float | None, typer.Option(metavar="RHO", help="Stated as zCDP: rho above 0.", rich_help_panel=_WHAT)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Stated as epsilon, with --delta where it is not 0: 0 or more.", rich_help_panel=_WHAT),
    ] = None,
    laplace: Annotated[
        float | None,
        typer.Option(
            metavar="NOISE",
            help="Laplace noise of this scale, in units of the L1 sensitivity: 1 / epsilon.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    discrete_gaussian: Annotated[
        float | None,
        typer.Option(
            metavar="NOISE",
            help="A count with discrete Gaussian noise of this parameter sigma, where one record counts 1.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    gaussian: Annotated[
        float | None,
        typer.Option(
            metavar="NOISE",
            help="Gaussian noise on a sum over all records, in units of its L2 sensitivity to one record.",
            rich_help_panel=_WHAT,
        ),
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
    event = next(_event(name, value, delta=delta, tool=tool) for name, value in given.items() if value is not None)
    path = ledger_at(place)
    with Ledger(path, dataset=_dataset(path, dataset)) as ledger:
        ledger.charge(event, times)
        typer.echo(f"{path}: recorded {times:,} × {in_words(event)} on data set {ledger.dataset!r}")


def _event(name: str, value: float, *, delta: float, tool: str) -> Event:
    match name:
        case "zcdp":
            return ZcdpAmount(value, tool)
        case "epsilon":
            return DpAmount(value, delta, tool)
        case "laplace":
            return Laplace(value)
        case "discrete_gaussian":
            return DiscreteGaussian(value)
        case _:
            return Gaussian(value)


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
