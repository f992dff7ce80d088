from __future__ import annotations

from dataclasses import replace

import pytest

from finished_runs import with_claim
from noisette.training.report import Facts
from noisette.training.report.facts import LayerBounds
from noisette.training.report.statement import as_text, statement


def words(facts: Facts) -> str:
    return " ".join(as_text(statement(facts), title="Privacy statement").split())


@pytest.mark.parametrize(
    "claim",
    [
        "Relation: add or remove one record. Unit: one record",
        "epsilon = 2.76, delta = 1e-4",
        "by dp-accounting 0.6.0 under noisette 1.2.3",
        "a Euclidean norm of at most 1.5, so one record moves the sum of a batch by at most 1.5",
        "As slack for rounding",
        "standard deviation 3.2 times 1.5",
        "Sampling: Poisson",
        "independently with probability 0.15.",
        "240 planned, 240 reserved in the ledger and paid for by epsilon, 240 carried out",
        "sealed by 0123abcd",
        "divided by 216, a declared constant",
        "Size of the training set: 1,437, a declared and public constant",
        "Of delta, 1.7e-13 is set aside for the far tail",
        "ChaCha20 keystreams under a key of 256 bits",
        "Arithmetic: floating point",
        "Unsafe switches: none.",
        "the test examples are taken to be public",
        "Running time",
        "People with several records",
        "choosing the best of several",
        "low bits of floating-point noise",
        "fairness, correctness, and the law",
    ],
)
def test_it_says(claim: str, facts: Facts) -> None:
    assert claim in words(facts)


def test_epsilon_is_rounded_upwards_wherever_it_stands(facts: Facts) -> None:
    text = words(with_claim(facts, epsilon=2.9910001))
    assert "(3.00, 1e-4)" in text
    assert "2.99" not in text


def test_a_run_that_was_stopped_says_so_and_names_the_budget(facts: Facts) -> None:
    text = words(with_claim(replace(facts, completed=False, steps_taken=96), steps=97))
    assert "stopped by hand after 96 of 240 steps" in text
    assert "97 reserved in the ledger" in text
    assert "the budget of the whole run holds: epsilon = 3." in text
    assert "stopped by hand" not in words(facts)


def test_a_large_delta_is_stamped(facts: Facts) -> None:
    text = words(with_claim(facts, delta=0.01, allow_large_delta=True))
    assert "Unsafe switches: allow_large_delta" in text
    assert "7.0e-4" in text or "7e-4" in text


def test_the_text_fits_a_terminal(facts: Facts) -> None:
    lines = as_text(statement(facts), title="Privacy statement").splitlines()
    assert max(map(len, lines)) <= 88


def test_public_examples_are_named_as_those_that_nothing_is_promised_to(facts: Facts) -> None:
    text = words(replace(facts, batch_norm="public", public_data="kmnist", public_examples=64, public_seed=5))
    assert '("public") takes statistics from 64 examples of kmnist, chosen by the seed 5' in text
    assert "Nothing is promised to those" in text
    assert "Batch norm" not in words(facts)


def test_without_a_claim_nothing_is_promised_and_the_reason_stands_there(non_private: Facts) -> None:
    text = words(non_private)
    assert "What is promised ---------------- Nothing. This run has no privacy claim." in text
    assert "The reason: one record moves the others." in text
    assert "does not bound what one record changes" in text
    assert "240 planned, 240 carried out" in text
    assert "128 examples of kmnist" in text
    for word in ("epsilon", "delta", "differentially", "ledger", "accountant", "Sensitivity"):
        assert word not in text


LAYERS = LayerBounds(
    tau=30.0,
    logit_clip=0.1,
    allocation="optimal",
    sensitivities={"2.weight": 0.10001, "4.weight": 0.2},
    deviations={"2.weight": 0.5, "4.weight": 1.25},
)


def test_a_network_that_bounds_by_its_layers_says_so_and_clips_nothing(facts: Facts) -> None:
    text = words(replace(facts, max_grad_norm=None, lipschitz=LAYERS))
    for told in (
        "every layer has a known Lipschitz constant, certified after each step",
        "entropy of the scores times 30, divided by it",
        "gradient at the scores is scaled to a norm of at most 0.1; behind the scores nothing is clipped",
        "at most: 2.weight 0.1, 4.weight 0.2 (at the last step)",
        'standard deviation for each parameter: 2.weight 0.5, 4.weight 1.25 (at the last step; allocation "optimal")',
    ):
        assert told in text
    assert "scaled to a Euclidean norm" not in text
    unclipped = words(replace(facts, max_grad_norm=None, lipschitz=replace(LAYERS, logit_clip=0.0)))
    assert "Nothing is clipped." in unclipped


def test_standardised_features_name_their_public_examples(facts: Facts) -> None:
    text = words(replace(facts, standardised=True, public_data="kmnist", public_examples=5000, public_seed=1))
    assert "The fixed features' standardisation takes statistics from 5000 examples of kmnist, chosen by the" in text
    assert "Nothing is promised to those" in text
    assert "Batch norm" not in text
