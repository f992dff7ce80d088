"""Errors of a command: bad input gives one plain message and exit code 2, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    except (ValueError, TypeError, OverflowError, OSError, PrivacyError) as error:
        typer.echo("\n".join([f"Error: {error}", *getattr(error, "__notes__", [])]), err=True)
        raise typer.Exit(EXIT_CODE) from None
