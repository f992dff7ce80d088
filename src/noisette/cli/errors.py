"""How a command speaks of bad input: in one plain message, with exit code 2 and without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from noisette.errors import PrivacyError

EXIT_CODE = 2
INTERRUPTED = 130  # what shells expect of a command that was stopped with Ctrl-C
TERMINATED = 143  # and with SIGTERM


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turns the errors by which the library refuses its input into a message on standard error and exit code 2.

    A context manager, and a decorator for a whole command.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError, OSError, PrivacyError) as error:
        typer.echo("\n".join([f"Error: {error}", *getattr(error, "__notes__", [])]), err=True)
        raise typer.Exit(EXIT_CODE) from None
