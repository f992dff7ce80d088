"""What commands share: options and how they are read, and errors as one plain message without a traceback."""

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from noisette.accounting.registry import ACCOUNTANTS
from noisette.errors import PrivacyError, said_by

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
        _refuse("\n".join([said_by(error), *getattr(error, "__notes__", [])]))
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # from Path.resolve, before Python 3.13
            raise
        _refuse(f"a path cannot be followed, because links lead to each other ({error})")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(2) from None


def option(metavar: str, text: str, default: str | None = None, *names: str, panel: str | None = None) -> Any:
    """An option with one value, which is read as a number if the metavar is F or N; its help shows this default."""
    read, shown = number if metavar in ("F", "N") else None, default or True
    return typer.Option(*names, metavar=metavar, help=text, show_default=shown, rich_help_panel=panel, parser=read)


def number(text: str) -> Any:
    """The number in a text, or the text if it is none, which the check of the range names beside other mistakes."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(str(text))  # a default is a number
    return text


def flag(name: str, text: str, *, panel: str | None = None) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, show_default=False, rich_help_panel=panel)


def check_accountant(name: str | None) -> None:
    """Check that an accountant has this name, if one is named."""
    if name is not None and name not in ACCOUNTANTS:
        raise ValueError(f"--accountant {name!r} is not one of {', '.join(ACCOUNTANTS)}")


def numbers(
    option: str, given: str, example: str, fits: Any = math.isfinite, form: str = "numbers", *, count: int = 0
) -> tuple[Any, ...]:
    """So many finite numbers in a text, or any, separated by commas, that fit; others are a ``ValueError``."""
    found = tuple(number(part) for part in given.split(","))
    right = all(isinstance(each, int | float) and fits(each) for each in found)
    if not right or len(found) != (count or len(found)):
        raise ValueError(f"expected --{option} as {form}, such as {example}, got {given!r}")
    return found


ABOVE_0: Any = (lambda number: 0 < number < math.inf, "numbers above 0")  # what fits, in code and in words


def whole_numbers(option: str, given: str, example: str, *, count: int = 0, most: float = math.inf) -> tuple[int, ...]:
    """The same of whole numbers from 1."""
    form = f"whole numbers from 1{'' if most == math.inf else f' to {most}'}"
    return numbers(option, given, example, lambda n: isinstance(n, int) and 1 <= n <= most, form, count=count)


def listed(option: str, given: str) -> tuple[str, ...]:
    """The names in a text, separated by commas; one with a comma in it is in double quotes."""
    try:
        [names] = csv.reader([given], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        form = 'names separated by commas, quoted as "a, b" where one has a comma'
        raise ValueError(f"expected --{option} as {form}, got {given!r}") from error
    return tuple(name.strip() for name in names)


def number_or_names(classes: str) -> int | tuple[str, ...]:
    """What ``--classes`` gives: the number of the classes, or their names."""
    return int(classes) if classes.isdecimal() else listed("classes", classes)


MOST_STEPS, MOST_RECORDS = 10**12, 10**15  # beyond any training: floating point would no longer tell runs apart


def at_most(most: int, **arguments: float | None) -> None:
    """Each argument that is given is at most this, or a ``ValueError`` names it."""
    for name, value in arguments.items():
        if isinstance(value, int | float) and value > most:
            raise ValueError(f"expected {name} <= {most:.0e}, got {name}={value}, more than any training has")


def check_new(out: Path) -> None:
    """Check that nothing is at the place of what is to be written."""
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")


_DESCRIPTIONS = "; ".join(f"{name}: {accountant.description}" for name, accountant in ACCOUNTANTS.items())
_NAMES = f"[{'|'.join(ACCOUNTANTS)}]"
AccountantName = Annotated[str, option(_NAMES, f"Computes the cost; pld is the tightest. {_DESCRIPTIONS}.")]
OneOrAllAccountants = Annotated[str | None, option(_NAMES, "Computes the cost; without it, every accountant.")]
OUT = "The run folder. An older run there is kept as DIR.replaced-1."
EPSILON = option("F", "Privacy budget, in nats: above 0.")
DELTA = option("F", "Probability with which the bound on epsilon may fail: above 0, below 1.")
FactsAsJson = Annotated[bool, typer.Option("--json", help="Print run.json with the folder, and nothing else.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]
_MODEL = "Where it is not built in: its package.module:callable, if you trust it, or the folder of Hugging Face."
RunModel = Annotated[str | None, option("MODEL", _MODEL)]
_PLACES = "$NOISETTE_DATA, then the user cache, then download"
DataDir = Annotated[Path | None, option("DIR", "Folder with the files of built-in data sets.", _PLACES)]
