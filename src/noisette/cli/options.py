"""What commands share: options and how they are read, and errors as one plain message without a traceback."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from noisette.accounting.registry import ACCOUNTANTS
from noisette.errors import PrivacyError

INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C
TERMINATED = 143  # and after SIGTERM


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the errors by which the library refuses input into a message on standard error and exit code 2."""
    try:
        yield
    except RecursionError:
        _refuse("a file is nested too deeply to be read")
    except (ValueError, TypeError, OverflowError, OSError, PrivacyError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            said = f"{error.filename}: {error.strerror}"
        _refuse("\n".join([said, *getattr(error, "__notes__", [])]))
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # from Path.resolve, before Python 3.13
            raise
        _refuse(f"a path cannot be followed, because links lead to each other ({error})")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(2) from None


def option(metavar: str, text: str, default: str | None = None, *names: str, panel: str | None = None) -> Any:
    """An option with one value and a help text, which shows this default where there is no value to show."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=default or True, rich_help_panel=panel)


def flag(name: str, text: str, *, panel: str | None = None) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, show_default=False, rich_help_panel=panel)


def _registered(name: str) -> str:
    if name not in ACCOUNTANTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(ACCOUNTANTS)}.")
    return name


def _accountant(text: str) -> Any:
    return typer.Option("--accountant", parser=_registered, metavar=f"[{'|'.join(ACCOUNTANTS)}]", help=text)


def whole_numbers(option: str, given: str, example: str, *, count: int = 0, most: float = math.inf) -> tuple[int, ...]:
    """So many whole numbers in a text, or any, separated by commas; others are a ``ValueError``."""
    parts = [part.strip() for part in given.split(",")]
    if len(parts) != (count or len(parts)) or not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        limits = "" if most == math.inf else f" to {most}"
        raise ValueError(f"expected --{option} as whole numbers from 1{limits}, such as {example}, got {given!r}")
    return tuple(int(part) for part in parts)


def numbers(
    option: str, given: str, example: str, *, count: int | None = None, above: float = -math.inf
) -> tuple[float, ...]:
    """So many numbers in a text, or any, separated by commas, within (above, inf); others are a ``ValueError``."""
    try:
        found = tuple(float(part) for part in given.split(","))
    except ValueError:
        found = ()
    if len(found) != (count or max(1, len(found))) or not all(above < number < math.inf for number in found):
        limit = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"expected --{option} as numbers{limit}, such as {example}, got {given!r}")
    return found


def listed(option: str, given: str) -> tuple[str, ...]:
    """The names in a text, separated by commas; one with a comma in it is in double quotes."""
    try:
        [names] = csv.reader([given], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(
            f'expected --{option} as names separated by commas, quoted as "a, b" where one has a comma, got {given!r}'
        ) from error
    return tuple(name.strip() for name in names)


def number_or_names(classes: str) -> int | tuple[str, ...]:
    """What ``--classes`` gives: the number of the classes, or their names."""
    return int(classes) if classes.isdecimal() else listed("classes", classes)


MOST_STEPS, MOST_RECORDS = 10**12, 10**15  # beyond any training: floating point would no longer tell runs apart


def at_most(most: int, **arguments: float | None) -> None:
    """Each argument that is given is at most this, or a ``ValueError`` names it."""
    for name, value in arguments.items():
        if value is not None and value > most:
            raise ValueError(f"expected {name} <= {most:.0e}, more than any training has; give a smaller {name}")


_DESCRIPTIONS = "; ".join(f"{name}: {accountant.description}" for name, accountant in ACCOUNTANTS.items())
AccountantName = Annotated[str, _accountant(f"Computes the cost; pld is the tightest. {_DESCRIPTIONS}.")]
OneOrAllAccountants = Annotated[str | None, _accountant("Computes the cost; without it, every accountant.")]
OUT = "The run folder. An older run there is kept as DIR.replaced-1."
EPSILON = typer.Option(help="Privacy budget, in nats: above 0.")
DELTA = typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1.")
FactsAsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, that of run.json with the folder, and nothing else.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]
_MODEL = (
    "The model of the run, where it is not built in: its package.module:callable, if you trust this code, or the "
    "folder of Hugging Face that the run began with."
)
RunModel = Annotated[str | None, option("MODEL", _MODEL)]
_PLACES = "$NOISETTE_DATA, then the user cache, then download"
DataDir = Annotated[Path | None, option("DIR", "Folder with the files of built-in data sets.", _PLACES)]
