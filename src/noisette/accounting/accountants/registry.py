"""All accountants by name: the one list that commands, recipes and reports are built from."""

from __future__ import annotations

from typing import Protocol

from noisette.accounting.accountants.composition import NaiveComposition, StrongComposition
from noisette.accounting.accountants.gdp import GdpAccountant
from noisette.accounting.accountants.interface import Accountant
from noisette.accounting.accountants.moments import MomentsAccountant
from noisette.accounting.accountants.pld import PldAccountant
from noisette.accounting.accountants.rdp import RdpAccountant


class RegisteredAccountant(Accountant, Protocol):
    """An accountant with the facts that commands, recipes and reports need."""

    @property
    def description(self) -> str:
        """What it computes, in a few words: for help texts and tables."""
        ...

    @property
    def method(self) -> str:
        """Its method as the privacy statement of a run names it."""
        ...

    @property
    def upper_bound(self) -> bool:
        """Whether its epsilon and delta are proved upper bounds."""
        ...

    @property
    def in_recipes(self) -> bool:
        """Whether a recipe may choose it."""
        ...


_REGISTERED: tuple[RegisteredAccountant, ...] = (
    PldAccountant(),
    RdpAccountant(),
    MomentsAccountant(),
    StrongComposition(),
    StrongComposition(as_printed=True),
    NaiveComposition(),
    GdpAccountant(),
)
ACCOUNTANTS = {accountant.name: accountant for accountant in _REGISTERED}
