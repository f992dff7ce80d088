"""The space of a search: what it takes from the command line, what it refuses, and what it draws."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from scipy import stats

from noisette.training.recipe import Recipe, TrainingSection
from noisette.training.search_space import Dimension, SearchSpace

RECIPE = Recipe()


def problems_of(*texts, recipe=RECIPE):
    with pytest.raises(ValueError, match="--over has these problems") as refusal:
        SearchSpace.read(texts, recipe)
    return str(refusal.value).split("\n  ")[1:]


def drawn(dimension, number=4000):
    random = Random(5)
    return [dimension.draw(random) for _ in range(number)]


def test_each_kind_is_read_and_shown_as_it_was_written():
    text = "lr=log(0.1,10)  max_grad_norm = uniform( 0.05 , 1 ) training.seed=int(0,9) optimizer=choice(sgd,adam)"
    space = SearchSpace.read([text, "cosine=choice(true,false) lr_end=choice(none,0.1)"], RECIPE)
    assert space.dimensions == {
        "training.lr": Dimension("log", (0.1, 10.0)),
        "privacy.max_grad_norm": Dimension("uniform", (0.05, 1.0)),
        "training.seed": Dimension("int", (0, 9)),
        "training.optimizer": Dimension("choice", ("sgd", "adam")),
        "training.cosine": Dimension("choice", (True, False)),
        "training.lr_end": Dimension("choice", (None, 0.1)),
    }
    assert SearchSpace.read([str(space)], RECIPE) == space


def test_intervals_are_uniform_also_in_logarithms():
    assert stats.kstest(drawn(Dimension("uniform", (-2.0, 5.0))), stats.uniform(-2, 7).cdf).pvalue > 1e-3
    logarithms = np.log(drawn(Dimension("log", (0.01, 100.0))))
    assert stats.kstest(logarithms, stats.uniform(math.log(0.01), math.log(1e4)).cdf).pvalue > 1e-3


def test_whole_numbers_and_choices_reach_all_values_equally():
    for dimension, values in (
        (Dimension("int", (3, 6)), [3, 4, 5, 6]),
        (Dimension("choice", ("a", "b", "c")), ["a", "b", "c"]),
    ):
        counts = Counter(drawn(dimension))
        assert sorted(counts) == values
        assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_what_is_drawn_stays_inside_and_has_four_digits():
    for dimension in (Dimension("uniform", (1.00001, 1.00002)), Dimension("log", (0.100004, 0.100006))):
        assert all(dimension.ends[0] <= value <= dimension.ends[1] for value in drawn(dimension, 50))
    assert all(float(f"{value:.4g}") == value for value in drawn(Dimension("log", (0.1, 10.0)), 200))


def test_a_draw_changes_what_is_searched_and_nothing_else():
    space = SearchSpace.read(["lr=log(0.1,10) max_grad_norm=uniform(0.05,1)"], RECIPE)
    recipe = space.draw(RECIPE, Random(0))
    settings = space.settings_of(recipe)
    assert settings == {"training.lr": recipe.training.lr, "privacy.max_grad_norm": recipe.privacy.max_grad_norm}
    back = replace(
        recipe,
        training=replace(recipe.training, lr=RECIPE.training.lr),
        privacy=replace(recipe.privacy, max_grad_norm=RECIPE.privacy.max_grad_norm),
    )
    assert back == RECIPE
    assert len({space.draw(RECIPE, random).training.lr for random in [Random(1)] for _ in range(20)}) > 15


def test_extremes_hold_each_end_and_each_choice():
    space = SearchSpace.read(["lr=log(0.1,10) optimizer=choice(sgd,adam) training.seed=choice(1,2,3)"], RECIPE)
    seen = [space.settings_of(recipe) for recipe in space.extremes(RECIPE)]
    for name, dimension in space.dimensions.items():
        assert {settings[name] for settings in seen} == set(dimension.ends)


def test_all_problems_are_said_at_once():
    found = problems_of(
        "lr=log(0,10) momentum=uniform(1,0.5) nose=int(1,2) seed=int(0,5) seed2 training.seed=uniform(1,2)",
        "cosine=choice(yes,no) frozen=choice(a,b) averaging=log(1) lr_epochs=gauss(1,2) max_grad_norm=choice(1,1)",
        "lr_end=uniform(nan,1)",
    )
    expected = [
        *("'seed2' is not", "lr: expected two numbers above 0", "momentum: expected two numbers, the smaller first"),
        *("nose: no recipe has this setting", "seed: several tables have it: say training.seed or"),
        *("training.seed: seed = 1.0 is not of the expected type", "cosine: cosine = 'yes' is not of the expected"),
        *("frozen: frozen = 'a' is not of the expected type", "averaging: expected two numbers above 0"),
        *("lr_epochs: there is no gauss()", "max_grad_norm: expected at least two values"),
        "lr_end: expected two numbers",
    ]
    assert len(found) == len(expected), found
    assert all(said.startswith(start) for said, start in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("batch_size=int(1,9)", "changes what a run costs"),
        ("batches=choice(poisson,truncated)", "changes what a run costs"),
        ("compile=choice(yes,no)", "changes the time and not the model"),
        ("holdout=uniform(0.1,0.2)", "which data are loaded"),
    ],
)
def test_what_changes_the_price_or_nothing_is_refused_with_the_way_out(text, reason):
    (said,) = problems_of(text)
    assert reason in said
    assert "set it in the recipe" in said


def test_values_that_the_recipe_refuses_are_found_before():
    assert "expected 0 <= momentum < 1" in problems_of("momentum=uniform(0.5,1.5)")[0]
    assert "momentum is that of SGD" in problems_of("optimizer=choice(sgd,adam) momentum=uniform(0.1,0.9)")[0]
    adam = replace(RECIPE, training=TrainingSection(optimizer="adam"))
    assert "momentum is that of SGD" in problems_of("momentum=uniform(0.1,0.9)", recipe=adam)[0]


def test_an_empty_space_and_a_setting_that_is_given_twice():
    assert "it is empty" in problems_of(" ")[0]
    assert problems_of("lr=log(1,2) training.lr=log(1,2)") == ["training.lr: it is given twice"]
