"""Steps of one kind of release in a ledger, and how many lines its file has."""

from pathlib import Path

from noisette.accounting import Ledger, PoissonGaussian

EVENT = PoissonGaussian(0.01, 1.1)


def steps(ledger: Ledger, number: int) -> None:
    """So many steps, in leases of four."""
    for step in range(number):
        if step % 4 == 0:
            ledger.reserve(EVENT, 4)
        ledger.commit()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")
