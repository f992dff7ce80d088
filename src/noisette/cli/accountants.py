"""The accountants that the command line offers, by name."""

from __future__ import annotations

from enum import StrEnum

from noisette.accounting import Accountant, GdpExact, MomentsAccountant, PldAccountant, RdpAccountant


class AccountantName(StrEnum):
    """What prices the steps, as it is named on the command line."""

    PLD = PldAccountant.name
    RDP = RdpAccountant.name
    MOMENTS = MomentsAccountant.name
    GDP = GdpExact.name


ACCOUNTANTS: dict[AccountantName, tuple[Accountant, str]] = {
    AccountantName.PLD: (PldAccountant(), "privacy loss distribution"),
    AccountantName.RDP: (RdpAccountant(), "Rényi differential privacy"),
    AccountantName.MOMENTS: (MomentsAccountant(), "moments accountant of Abadi et al."),
    AccountantName.GDP: (GdpExact(), "closed form for releases over all records"),
}

OPTIMISTIC: frozenset[AccountantName] = frozenset()
"""Those whose prices are no upper bounds."""
