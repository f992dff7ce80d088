"""How often one event stands in a ledger, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from noisette.accounting.ledger.lines import Kind


@dataclass(frozen=True)
class Tally:
    """How often one event stands in a ledger.

    Args:
        reserved: times that it was allowed to happen.
        committed: times that it happened, as far as is known.
        given_back: times that were reserved and are known not to have happened.
        charged: times that were paid for on their own, before they happened.
    """

    reserved: int = 0
    committed: int = 0
    given_back: int = 0
    charged: int = 0

    @property
    def paid(self) -> int:
        """What the price counts: all that may have happened."""
        return self.reserved - self.given_back + self.charged

    def after(self, kind: Kind, steps: int) -> Tally:
        """The tally with a line of this kind added.

        Raises:
            ValueError: more would be committed and given back than was reserved.
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
