from __future__ import annotations

import math
from dataclasses import replace

import pytest

from noisette.data import load
from noisette.training.defaults import NETWORK_REACH
from noisette.training.loop import train
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection, default_recipe

WITHOUT = TrainingSection(epochs=1, batch_size=360, lr=None)
RECIPE = Recipe(DataSection("digits"), ModelSection("mlp"), privacy=PrivacySection(delta=1e-4), training=WITHOUT)
WEIGHTS = (64 * 128 + 128) + (128 * 128 + 128) + (128 * 10 + 10)


@pytest.mark.parametrize(
    ("training", "factor"),
    [(WITHOUT, 2.0), (replace(WITHOUT, cosine=False), 1.0), (replace(WITHOUT, momentum=0.5), 1.0)],
    ids=["cosine", "constant", "momentum"],
)
def test_a_recipe_without_a_rate_gets_that_of_the_rule(training: TrainingSection, factor: float) -> None:
    outcome = train(
        replace(RECIPE, training=training), load("digits"), on_step=lambda run, point: None, ledger_path=None
    )
    noise = WEIGHTS * (outcome.run.noise_multiplier / 360) ** 2
    expected = factor * NETWORK_REACH / math.sqrt(outcome.run.steps * (1 + noise))
    assert outcome.recipe.training.lr == pytest.approx(expected)


def test_a_given_rate_is_kept() -> None:
    given = replace(RECIPE, training=replace(WITHOUT, lr=0.25))
    assert train(given, load("digits"), on_step=lambda run, point: None, ledger_path=None).recipe == given


def test_other_optimizers_need_a_rate() -> None:
    with pytest.raises(ValueError, match="the rule for learning rates is for SGD"):
        replace(RECIPE, training=replace(WITHOUT, optimizer="adam"))


def test_tables_of_ones_own_take_the_rule_and_adam_does_not() -> None:
    own = {"name": "own.csv", "size": 700}
    assert default_recipe(own).training.lr is None
    assert default_recipe(own, optimizer="adam").training.lr is not None
    assert default_recipe(own | {"text": "review"}).training.lr is not None
