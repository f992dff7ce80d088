"""Each planted fault fails the tests that are named for it, and without a fault they pass."""

from __future__ import annotations

import pytest

from mutants import GROUPS, MUTANTS
from planted import Mutant, missed_by, outcome

# A nested session of pytest takes seconds, so `make test` plants one fault of each group; `make test-all` plants all.
REPRESENTATIVES = {
    "Batches, and public numbers": "empty batches skipped",
    "Drawing and loading of records": "records of several forms are collated",
    "Loops, optimizers and collation": "a release for each class of an optimizer",
    "Trainers of other libraries": "samplers of Lightning's loaders are left out without a word",
    "Bounds by clipping": "the batch clipped",
    "Rounding": "Sums in the precision of the weights",
    "Captured steps": "parameters are fixed in the graph",
    "Passes that are repeated": "the second pass is not held to the norms of the first",
    "Memory": "microbatches are added in single precision",
    "Examples kept apart": "a loss that is given the batch",
    "Bounds without clipping": "half the sensitivity",
    "State that is published with the weights": "what the loop writes into buffers within a batch stays",
    "Random numbers within a batch": "random numbers within a batch have known seeds",
    "Noise": "nine tenths of the noise",
    "Noise that is correlated over steps": "noise is correlated across a gap",
    "Prices": "bounds on attacks leave out delta",
    "Ledger and resumed runs": "ledger after instead of before",
    "Several ranks": "names of wrappers are part of the names of parameters",
    "Views, averages, and small runs": "views are added up",
    "Searches and closed form": "the score on records has no noise",
}


@pytest.mark.slow
def test_the_named_tests_pass_without_a_fault() -> None:
    named = list(dict.fromkeys(test for mutant in MUTANTS for test in mutant.caught_by))
    assert {test: error for test, error in outcome(named).items() if error is not None} == {}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=[] if mutant.name in REPRESENTATIVES.values() else pytest.mark.slow, id=mutant.name)
        for mutant in MUTANTS
    ],
)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    assert missed_by(mutant) == {}


def test_every_fault_has_a_name_of_its_own_and_every_group_a_representative() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 24
    assert REPRESENTATIVES.keys() == GROUPS.keys()
    for group, name in REPRESENTATIVES.items():
        assert name in [mutant.name for mutant in GROUPS[group]], group
