"""Entries of the tables of names that a recipe or an option can give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """What a name stands for: where it is defined, and a description of a few words.

    The module is imported when the entry is resolved, so that a table can be read without torch.

    Args:
        target: ``module:attribute``.
        description: for help texts and reports; it continues the sentence "NAME: ...".

    >>> Entry("math:sqrt", "square root").resolve()(4.0)
    2.0
    """

    target: str
    description: str

    def resolve(self) -> Any:
        """The class or function itself."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


def described(table: Mapping[str, Entry]) -> str:
    """The names of a table with their descriptions, as one line of help.

    >>> described({"sqrt": Entry("math:sqrt", "square root"), "exp": Entry("math:exp", "exponential")})
    'sqrt: square root; exp: exponential'
    """
    return "; ".join(f"{name}: {entry.description}" for name, entry in table.items())
