"""Errors of a command: bad input gives one plain message and exit code 2, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from noisette.errors import PrivacyError

EXIT_CODE = 2
INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C
TERMINATED = 143  # and after SIGTERM


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the errors by which the library refuses input into a message on standard error and exit code 2.

    It is a context manager, and also a decorator for a whole command.
    """
    try:
        yield
    except RecursionError:
        _refuse("a file is nested too deeply to be read")
    except (ValueError, TypeError, OverflowError, OSError, PrivacyError) as error:
        _refuse("\n".join([str(error), *getattr(error, "__notes__", [])]))
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # from Path.resolve, before Python 3.13
            raise
        _refuse(f"a path cannot be followed, because links lead to each other ({error})")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(EXIT_CODE) from None
