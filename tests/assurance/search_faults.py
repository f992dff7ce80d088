"""Faults of searches, of the tail of the noise, and of the closed form."""

from __future__ import annotations

import math

import pytest
from scipy.special import ndtr

from noisette._internal.keystream import SecretKey
from noisette.accounting import Ledger, RepeatAndSelect, noise_tail
from noisette.accounting.accountants.gdp import GdpCurve
from noisette.accounting.number_of_runs import NumberOfRuns
from planted import Mutant

_SEARCH = "run/test_repeat_and_select.py"
_TAIL = "accounting/test_noise_tail.py"


def charged_afterwards(patch: pytest.MonkeyPatch) -> None:
    """The search is written down only once its number of runs is known."""
    whole = Ledger.charge

    def charge(self: Ledger, event: RepeatAndSelect, times: int = 1) -> None:
        if isinstance(event, RepeatAndSelect):
            NumberOfRuns.of(event).draw(SecretKey())
        whole(self, event, times)

    patch.setattr(Ledger, "charge", charge)


def fixed_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NumberOfRuns, "draw", lambda self, key: round(self.mean))


def square(patch: pytest.MonkeyPatch) -> None:
    """Each number of a pair ends at the radius by itself."""

    def tail(shift: float, dimensions: int) -> float:
        spread = {1, dimensions}
        limits = [k * (ndtr(shift / math.sqrt(k) - noise_tail.RADIUS) - ndtr(-noise_tail.RADIUS)) for k in spread]
        return min(1.0, 2 * float(max(limits)))

    patch.setattr(noise_tail, "_tail", tail)


def cancelling(patch: pytest.MonkeyPatch) -> None:
    """The difference of two nearly equal numbers, without an allowance for its rounding."""

    def log_delta(self: GdpCurve, epsilon: float) -> float:
        first, second = ndtr(self.mu / 2 - epsilon / self.mu), ndtr(-self.mu / 2 - epsilon / self.mu)
        return math.log(max(first - math.exp(min(epsilon, 700.0)) * second, 1e-320))

    patch.setattr(GdpCurve, "_log_delta", log_delta)


MUTANTS = [
    Mutant(
        "a search is charged after its number of runs is drawn",
        "a process that is killed in between can draw again for more runs",
        charged_afterwards,
        (f"{_SEARCH}::test_the_search_is_on_disk_before_the_number_is_drawn",),
    ),
    Mutant(
        "the number of runs of a search is fixed",
        "the best of a known number of runs costs far more than the best of a random one",
        fixed_number,
        (
            f"{_SEARCH}::test_numbers_of_runs_differ_between_searches",
            "accounting/test_number_of_runs.py::test_draws_have_the_distribution",
        ),
    ),
    Mutant(
        "the pairs of the noise fill a square",
        "the delta of the tail is stated too small",
        square,
        (f"{_TAIL}::test_no_division_of_the_shift_among_pairs_has_a_larger_crescent",),
    ),
    Mutant(
        "the closed form loses its digits",
        "delta is stated too small",
        cancelling,
        ("accounting/accountants/test_gdp.py::test_delta_of_thousands_of_curves",),
    ),
]
