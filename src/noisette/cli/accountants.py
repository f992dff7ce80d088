"""The accountants that the command line offers, by name."""

from __future__ import annotations

from enum import StrEnum

from noisette.accounting import (
    Accountant,
    GdpAccountant,
    MomentsAccountant,
    NaiveComposition,
    PldAccountant,
    RdpAccountant,
    StrongComposition,
)


class AccountantName(StrEnum):
    """What prices the steps, as it is named on the command line."""

    PLD = PldAccountant.name
    RDP = RdpAccountant.name
    MOMENTS = MomentsAccountant.name
    STRONG = StrongComposition().name
    STRONG_PAPER = StrongComposition(as_printed=True).name
    NAIVE = NaiveComposition().name
    GDP = GdpAccountant.name


ACCOUNTANTS: dict[AccountantName, tuple[Accountant, str]] = {
    AccountantName.PLD: (PldAccountant(), "privacy loss distribution"),
    AccountantName.RDP: (RdpAccountant(), "Rényi differential privacy"),
    AccountantName.MOMENTS: (MomentsAccountant(), "moments accountant of Abadi et al."),
    AccountantName.STRONG: (StrongComposition(), "strong composition"),
    AccountantName.STRONG_PAPER: (StrongComposition(as_printed=True), "the printed, optimistic form: no guarantee"),
    AccountantName.NAIVE: (NaiveComposition(), "sum of all epsilons"),
    AccountantName.GDP: (GdpAccountant(), "closed form for releases over all records"),
}

OPTIMISTIC = frozenset({AccountantName.STRONG_PAPER})
"""Those whose prices are no upper bounds."""
