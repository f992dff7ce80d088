"""The facts of a run: how numbers are printed, and ``run.json``."""

import json
import math
from dataclasses import asdict

from hypothesis import given, strategies

from finished_runs import with_recipe
from noisette.training.recipe import Recipe
from noisette.training.report.facts import percent, power_of_ten, upward


@given(strategies.floats(min_value=0, max_value=1e6))
def test_an_epsilon_is_never_printed_smaller_than_it_is(epsilon):
    assert epsilon <= float(upward(epsilon)) <= epsilon + 0.0101


@given(strategies.floats(min_value=1e-300, max_value=0.01))
def test_a_small_epsilon_has_two_digits(epsilon):
    assert epsilon <= float(upward(epsilon)) <= 1.1001 * epsilon
    assert (upward(1e-6), upward(9.91e-3), upward(0.0)) == ("0.0000010", "0.0100", "0.00")
    assert (upward(math.inf), percent(1.0)) == ("infinite", "100.0 %")


@given(strategies.floats(min_value=1e-300, max_value=0.9))
def test_a_power_of_ten_reads_back_to_two_digits(delta):
    assert math.isclose(float(power_of_ten(delta)), delta, rel_tol=0.05)


def test_the_recipe_can_be_read_back(facts):
    run = json.loads(facts.as_json())
    assert Recipe.of(run["recipe"], "run.json") == facts.recipe
    assert run["points"][-1]["epsilon"] == run["epsilon"]


def test_the_folders_of_the_user_are_not_published(facts):
    data = {"name": "/home/me/mine.csv", "test": "/home/me/test.csv"}
    model = {"weights": "/home/me/w.safetensors", "standardised": True}
    own = with_recipe(facts, data=data, model=model, public={"data": "/home/you/mine.csv"})
    text = own.as_json()
    assert "/home" not in text
    recipe = json.loads(text)["recipe"]
    assert [recipe["data"]["name"], recipe["model"]["weights"]] == ["mine.csv", "w.safetensors"]
    others = dict.fromkeys(("data", "model", "public"))
    assert recipe | others == json.loads(json.dumps(asdict(own.recipe))) | others
