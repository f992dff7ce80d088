"""A run, by which the lines of a ledger are told apart."""

from __future__ import annotations

import secrets


class RecordedRun:
    """A run as the ledger knows it: steps that were reserved for this object are committed and given back for it alone.

    Args:
        id: stands in each line of the run, also after it was resumed by another process; drawn at random unless given.
    """

    def __init__(self, id: str | None = None) -> None:
        self.id = secrets.token_hex(8) if id is None else id
