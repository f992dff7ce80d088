"""How often a release is recorded in a ledger: what was reserved, what happened and what was given back."""

from __future__ import annotations

from dataclasses import dataclass

from noisette.accounting.ledger.lines import Kind


@dataclass(frozen=True)
class Tally:
    """How often one event is recorded in a ledger.

    Args:
        reserved: releases that were allowed in advance.
        committed: reserved releases that happened, as far as is known.
        given_back: reserved releases that are known not to have happened.
        charged: releases that were recorded one by one, before they happened.
    """

    reserved: int = 0
    committed: int = 0
    given_back: int = 0
    charged: int = 0

    @property
    def paid(self) -> int:
        """The number that counts towards the privacy cost: all releases that may have happened."""
        return self.reserved - self.given_back + self.charged

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.reserved + other.reserved,
            self.committed + other.committed,
            self.given_back + other.given_back,
            self.charged + other.charged,
        )

    def by_kind(self) -> dict[Kind, int]:
        """The counts by the kind of line that records them."""
        return {
            Kind.RESERVE: self.reserved,
            Kind.COMMIT: self.committed,
            Kind.RELEASE: self.given_back,
            Kind.CHARGE: self.charged,
        }

    def after(self, kind: Kind, steps: int) -> Tally:
        """The tally after a line of this kind.

        Raises:
            ValueError: more releases would be committed and given back than were reserved.
        """
        tally = Tally(
            self.reserved + steps * (kind is Kind.RESERVE),
            self.committed + steps * (kind is Kind.COMMIT),
            self.given_back + steps * (kind is Kind.RELEASE),
            self.charged + steps * (kind is Kind.CHARGE),
        )
        if tally.committed + tally.given_back > tally.reserved:
            raise ValueError(
                f"{tally.committed} steps committed and {tally.given_back} given back are more than the "
                f"{tally.reserved} reserved"
            )
        return tally
