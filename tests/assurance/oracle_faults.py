"""Faults of prices that only an exact comparison shows."""

from __future__ import annotations

import pytest

from noisette.accounting import privacy_loss as of_event
from noisette.accounting.pld import PldCurve
from noisette.accounting.privacy_loss import Directions, TruncatedCase
from planted import Mutant

_TEST = "accounting/test_exact_prices.py::test_no_price_is_below_the_known_truth"


def slightly_less(patch: pytest.MonkeyPatch) -> None:
    whole = PldCurve.epsilon
    patch.setattr(PldCurve, "epsilon", lambda self, *, delta: whole(self, delta=delta) * (1 - 1e-4))


def exchanges_forgotten(patch: pytest.MonkeyPatch) -> None:
    def grows(case: TruncatedCase, tail: float) -> Directions:
        return of_event._sampled(case.parts[0][1], tail)

    of_event.directions_of.cache_clear()
    patch.setattr(of_event, "_truncated", grows)


MUTANTS = [
    Mutant("epsilon is a ten-thousandth too small", "no price is an upper bound", slightly_less, (_TEST,)),
    Mutant(
        "records exchanged in a full batch are forgotten",
        "a truncated batch costs as little as a Poisson batch",
        exchanges_forgotten,
        (_TEST,),
    ),
]
