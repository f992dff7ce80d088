"""The accountants by name, and the form of such tables, from which recipes and options take their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from noisette.accounting.closed_forms import GdpAccountant
from noisette.accounting.pld import PldAccountant
from noisette.accounting.rdp import MomentsAccountant, RdpAccountant


@dataclass(frozen=True)
class Entry:
    """What a name stands for: its place, as module:name, which is imported when it is used; and in a few words."""

    place: str
    description: str

    def resolve(self) -> Any:
        return resolve_name(self.place)


def described(table: Mapping[str, Entry]) -> str:
    """The names of a table with their descriptions, for a help text.

    >>> described({"whole": Entry("builtins:int", "a whole number"), "any": Entry("builtins:float", "any number")})
    'whole: a whole number; any: any number'
    """
    return "; ".join(f"{name}: {entry.description}" for name, entry in table.items())


ACCOUNTANTS = {each.name: each for each in (PldAccountant(), RdpAccountant(), MomentsAccountant(), GdpAccountant())}
