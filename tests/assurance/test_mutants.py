"""Each planted fault fails the tests that are named for it, and without a fault they pass."""

from __future__ import annotations

import pytest

from mutants import MUTANTS
from planted import Mutant, missed_by, outcome


@pytest.mark.slow
def test_the_named_tests_pass_without_a_fault() -> None:
    named = list(dict.fromkeys(test for mutant in MUTANTS for test in mutant.caught_by))
    assert {test: error for test, error in outcome(named).items() if error is not None} == {}


# A nested session of pytest takes most of the time, so each run of the suite has every fourth fault.
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=[pytest.mark.slow] if k % 4 else [], id=mutant.name)
        for k, mutant in enumerate(MUTANTS)
    ],
)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    assert missed_by(mutant) == {}


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 24
