"""Each planted fault fails the tests that are named for it, and without a fault they pass."""

import pytest

from planting import GROUPS, MUTANTS, Mutant, missed_by, outcome

# A nested session of pytest takes seconds, so `make test` plants the first fault of each area; `make test-all` plants
# all of them.
REPRESENTATIVES = {group[0] for group in GROUPS.values()}


@pytest.mark.slow
def test_the_named_tests_pass_without_a_fault() -> None:
    named = list(dict.fromkeys(test for mutant in MUTANTS for test in mutant.caught_by))
    assert {test: error for test, error in outcome(named).items() if error is not None} == {}


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, marks=[] if one in REPRESENTATIVES else pytest.mark.slow, id=one.name) for one in MUTANTS],
)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    assert missed_by(mutant) == {}


@pytest.mark.parametrize("area", GROUPS)
def test_every_fault_fits_the_source_and_has_a_name_of_its_own(area: str) -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in GROUPS[area]:
        for change in mutant.changes:
            with pytest.MonkeyPatch.context() as patch:
                change(patch)
