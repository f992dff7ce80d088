"""Faults of the bounds on attacks: they state less than an attack reaches."""

from __future__ import annotations

import math

import pytest

from noisette.accounting import Event, PldAccountant, PoissonGaussian
from noisette.accounting.interface import TradeOff
from noisette.training.report.facts import Facts
from planted import Mutant

_TESTS = "accounting/test_trade_off.py"


def delta_left_out(patch: pytest.MonkeyPatch) -> None:
    def true_positive_rate(self: TradeOff, false_positive_rate: float) -> float:
        return min(1.0, min(math.exp(epsilon) * false_positive_rate for epsilon, _ in self.profile))

    patch.setattr(TradeOff, "true_positive_rate", true_positive_rate)


def loss_as_rare_as_delta(patch: pytest.MonkeyPatch) -> None:
    """The probability of a loss above epsilon is taken for delta, which is smaller."""

    def posterior(self: TradeOff, *, exceeded: float) -> float:
        losses = [epsilon for epsilon, delta in self.profile if delta <= exceeded]
        return 1 / (1 + math.exp(-min(losses, default=math.inf)))

    patch.setattr(TradeOff, "posterior", posterior)


def steps_alone(patch: pytest.MonkeyPatch) -> None:
    """Steps over Poisson batches of records are taken for everything that was released."""

    def attack(facts: Facts) -> TradeOff:
        steps: dict[Event, int] = {PoissonGaussian(facts.sampling_rate, facts.noise_multiplier): facts.steps}
        return TradeOff(PldAccountant().compose(steps))

    patch.setattr("noisette.training.report.page._attack", attack)


MUTANTS = [
    Mutant(
        "the report's attacks see the steps alone",
        "what else the ledger counts, and that users have several records, is not in the bounds of the report",
        steps_alone,
        (
            "training/report/test_page.py::test_attacks_see_everything_that_the_ledger_counts",
            "training/report/test_page.py::test_attacks_on_users_reach_more_than_on_records",
        ),
    ),
    Mutant(
        "bounds on attacks leave out delta",
        "a report promises fewer members found than an attack finds",
        delta_left_out,
        (f"{_TESTS}::test_bounds_of_one_gaussian_are_its_closed_form",),
    ),
    Mutant(
        "a belief is exceeded more often than stated",
        "a report promises that a belief is rarer than it is",
        loss_as_rare_as_delta,
        (f"{_TESTS}::test_the_belief_is_exceeded_as_rarely_as_stated",),
    ),
]
