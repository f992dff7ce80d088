"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette.accounting.accountants.registry import ACCOUNTANTS


def option(metavar: str, text: str, default: str | None = None, *, panel: str | None = None) -> Any:
    """An option with one value and a help text, which shows this default where there is no value to show."""
    return typer.Option(metavar=metavar, help=text, show_default=default or True, rich_help_panel=panel)


def registered(name: str) -> str:
    """The name of an accountant that is in the registry.

    Raises:
        typer.BadParameter: there is none of this name.
    """
    if name not in ACCOUNTANTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(ACCOUNTANTS)}.")
    return name


def whole_numbers(option: str, given: str, example: str, *, most: float = math.inf, least: int = 1) -> tuple[int, ...]:
    """The whole numbers in a text, separated by commas.

    Raises:
        ValueError: the text has another form, or a number is out of range.
    """
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and least <= int(part) <= most for part in parts):
        limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"expected --{option} as whole numbers {limits}, such as {example}, got {given!r}")
    return tuple(int(part) for part in parts)


def numbers(option: str, given: str, example: str, *, count: int) -> tuple[float, ...]:
    """The numbers in a text, separated by commas.

    Raises:
        ValueError: there are more or fewer, or one is no finite number.
    """
    try:
        found = tuple(float(part) for part in given.split(","))
    except ValueError:
        found = ()
    if len(found) != count or not all(map(math.isfinite, found)):
        raise ValueError(f"expected --{option} as {count} numbers, such as {example}, got {given!r}")
    return found


def listed(option: str, given: str) -> tuple[str, ...]:
    """The names in a text, separated by commas; one with a comma in it is in double quotes.

    Raises:
        ValueError: the quotes do not match.
    """
    try:
        [names] = csv.reader([given], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(
            f'expected --{option} as names separated by commas, quoted as "a, b" where one has a comma, got {given!r}'
        ) from error
    return tuple(name.strip() for name in names)


MOST_STEPS, MOST_RECORDS = 10**12, 10**15  # beyond any training: floating point would no longer tell runs apart


def at_most(most: int, **arguments: float | None) -> None:
    """Check that no argument is above this limit; one that is not given is fine.

    Raises:
        ValueError: one is.
    """
    for name, value in arguments.items():
        if value is not None and value > most:
            raise ValueError(f"expected {name} <= {most:.0e}, more than any training has; give a smaller {name}")


_DESCRIPTIONS = "; ".join(f"{name}: {accountant.description}" for name, accountant in ACCOUNTANTS.items())
_NAMES = f"[{'|'.join(ACCOUNTANTS)}]"
AccountantName = Annotated[
    str,
    typer.Option(
        "--accountant",
        parser=registered,
        metavar=_NAMES,
        help=f"Computes the cost; pld is the tightest. {_DESCRIPTIONS}.",
    ),
]
OneOrAllAccountants = Annotated[
    str | None,
    typer.Option(
        "--accountant", parser=registered, metavar=_NAMES, help="Computes the cost; without it, every accountant."
    ),
]
SamplingRate = Annotated[
    float | None, typer.Option(help="Probability that a record is in one step's batch: above 0, at most 1.")
]
NOISE_MULTIPLIER = typer.Option(
    help="Standard deviation of the noise, in units of the sum's sensitivity to one record: above 0."
)
NOISE = typer.Option(
    "--noise-multiplier",
    "--noise",
    help="Standard deviation of the noise, in units of the sum's sensitivity to one record: above 0.",
)
STEPS = typer.Option(help="Number of steps, empty batches included: at least 1.")
EPSILON = typer.Option(help="Privacy budget, in nats: above 0.")
DELTA = typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1.")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Also draw a figure: a .png, an .svg, or an .html page with figure and tables."
    ),
]
DataDir = Annotated[
    Path | None,
    option("DIR", "Folder with the files of built-in data sets.", "$NOISETTE_DATA, then the user cache, then download"),
]
_SUFFIXES = (".png", ".svg", ".html")


def check_plot(path: Path | None) -> None:
    """Check that the figure can be written to this file, in a supported format.

    Raises:
        ValueError: it cannot.
    """
    if path is None:
        return
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"expected a plot that ends in {', '.join(_SUFFIXES)}, got --plot {path}")
    if path.is_dir():
        raise ValueError(f"--plot {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for --plot {path}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"--plot {path} cannot be written: the folder is not writable")
