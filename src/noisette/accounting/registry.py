"""The accountants by name, and the form of such tables, from which recipes and options take their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from noisette.accounting.closed_forms import GdpAccountant
from noisette.accounting.pld import PldAccountant
from noisette.accounting.rdp import MomentsAccountant, RdpAccountant


@dataclass(frozen=True)
class Entry:
    """What a name stands for, in a few words; ``resolve`` imports it, so that a table can be read without torch."""

    resolve: Callable[[], Any]
    description: str


def described(table: Mapping[str, Entry]) -> str:
    """The names of a table with their descriptions, for a help text.

    >>> described({"whole": Entry(lambda: int, "a whole number"), "any": Entry(lambda: float, "any number")})
    'whole: a whole number; any: any number'
    """
    return "; ".join(f"{name}: {entry.description}" for name, entry in table.items())


ACCOUNTANTS = {each.name: each for each in (PldAccountant(), RdpAccountant(), MomentsAccountant(), GdpAccountant())}
