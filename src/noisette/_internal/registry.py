"""Entries of the tables of names that a recipe or an option can give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """What a name stands for.

    Args:
        resolve: gives the class or function itself. It imports the module when it is called, so that a table can be
            read without torch.
        description: a few words for help texts and reports.

    >>> Entry(lambda: float, "a number").resolve()("2")
    2.0
    """

    resolve: Callable[[], Any]
    description: str


def described(table: Mapping[str, Entry]) -> str:
    """The names of a table with their descriptions, for a help text.

    >>> described({"whole": Entry(lambda: int, "a whole number"), "any": Entry(lambda: float, "any number")})
    'whole: a whole number; any: any number'
    """
    return "; ".join(f"{name}: {entry.description}" for name, entry in table.items())
