from __future__ import annotations

from dataclasses import replace

import pytest

from finished_runs import with_recipe
from noisette.accounting import BallsInBinsGaussian, Event, PoissonGaussian, UserLevel
from noisette.accounting.events import facts_of
from noisette.training.report.facts import Facts, LayerBounds
from noisette.training.report.statement import as_text, statement


def words(facts: Facts) -> str:
    return " ".join(as_text(statement(facts), title="Privacy statement").split())


@pytest.mark.parametrize(
    "claim",
    [
        "Relation: add or remove one record. Unit: one record",
        "epsilon = 2.76, delta = 1e-4",
        "by noisette 0.1.0, rounded upwards",
        "a Euclidean norm of at most 1.5, so one record moves the sum of a batch by at most 1.5",
        "computed by the engine book-keeping (one backward pass)",
        "for rounding, the noise is that of a sensitivity larger by one part in 8,192",
        "standard deviation 3.2 times 1.5",
        "an attacker who sees every step and knows or has forged all other records",
        "Contract: the loss is a function of one example",
        "Code of the operator that breaks the contract",
        "Sampling: Poisson",
        "independently with probability 0.15.",
        "240 planned, 240 reserved in the ledger and covered by epsilon, 240 carried out",
        "the seal of its last line is 0123abcd",
        "divided by 216, a declared constant",
        "Size of the training set: 1,437, a declared and public constant",
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
    text = words(replace(facts, epsilon=2.9910001))
    assert "(3.00, 1e-4)" in text
    assert "2.99" not in text


def test_several_declarations_say_which_epsilon_it_is(facts: Facts) -> None:
    assert "odometer" not in words(facts)
    text = words(replace(facts, declarations=2))
    assert "The ledger holds 2 declarations" in text
    assert "that of a Rényi odometer, or the budget" in text


def test_a_large_delta_is_stamped(facts: Facts) -> None:
    text = words(with_recipe(facts, privacy={"delta": 0.01, "allow_large_delta": True}))
    assert "Unsafe switches: allow_large_delta" in text
    assert "7.0e-4" in text or "7e-4" in text


def test_the_text_fits_a_terminal(facts: Facts) -> None:
    lines = as_text(statement(facts), title="Privacy statement").splitlines()
    assert max(map(len, lines)) <= 88


def test_public_examples_are_named_as_those_that_have_no_guarantee(facts: Facts) -> None:
    text = words(
        with_recipe(facts, model={"batch_norm": "public"}, public={"data": "kmnist", "examples": 64, "seed": 5})
    )
    assert '("public") takes statistics from 64 examples of kmnist, chosen by the seed 5' in text
    assert "These examples have no guarantee" in text
    assert "batch norm" not in words(facts)


LAYERS = LayerBounds(
    sensitivities={"2.weight": 0.10001, "4.weight": 0.2}, deviations={"2.weight": 0.5, "4.weight": 1.25}
)


def by_layers(facts: Facts, logit_clip: float) -> Facts:
    settings = {"tau": 30.0, "logit_clip": logit_clip}
    facts = with_recipe(facts, lipschitz=settings, privacy={"max_grad_norm": 1.0})
    return replace(facts, max_grad_norm=None, lipschitz=LAYERS)


def test_a_network_that_bounds_by_its_layers_says_so_and_clips_nothing(facts: Facts) -> None:
    text = words(by_layers(facts, 0.1))
    for told in (
        "Every layer has a known Lipschitz constant, certified after each step",
        "entropy of the scores times 30, divided by 30",
        "gradient at the scores is scaled to a norm of at most 0.1; below the scores nothing is clipped",
        "at most: 2.weight 0.1, 4.weight 0.2 (at the last step)",
        'standard deviation for each parameter: 2.weight 0.5, 4.weight 1.25 (at the last step; allocation "optimal")',
    ):
        assert told in text
    assert "scaled to a Euclidean norm" not in text
    unclipped = words(by_layers(facts, 0.0))
    assert "Nothing is clipped." in unclipped


def test_standardised_features_name_their_public_examples(facts: Facts) -> None:
    text = words(
        with_recipe(facts, model={"standardised": True}, public={"data": "kmnist", "examples": 5000, "seed": 1})
    )
    assert (
        "The standardisation of the fixed features takes statistics from 5000 examples of kmnist, chosen by the" in text
    )
    assert "These examples have no guarantee" in text
    assert "batch norm" not in text


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (UserLevel(PoissonGaussian(0.15, 3.2), 1), "Each user enters the batch of a step independently"),
        (UserLevel(PoissonGaussian(0.15, 3.2), 3), "Each record enters the batch of a step independently"),
        (BallsInBinsGaussian(10, 3.2), "In each pass of 10 steps, each record chooses the batch of one step"),
    ],
)
def test_how_batches_are_drawn_is_said(event: Event, said: str, facts: Facts) -> None:
    text = words(replace(facts, event=facts_of(event), released=((facts_of(event), 1),)))
    assert said in text
    assert ("Unit: one user" in text) == isinstance(event, UserLevel)
