"""Which ledger a run folder or a file stands for on the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from noisette.accounting.ledger.ledger import LEDGER_FILE


def ledger_at(place: Path) -> Path:
    """The ledger at this place, or of the run that was to be written there and has not ended.

    Where the place alone does not say which ledger is meant, a line on standard error does.

    Raises:
        ValueError: there is no ledger at the place, and several runs for it have not ended.
    """
    from noisette.training.unfinished import in_words, unfinished_runs

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
