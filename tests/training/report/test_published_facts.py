"""``run.json``: the recipe as it is, with the results beside it."""

from __future__ import annotations

import json
from dataclasses import asdict

from finished_runs import with_recipe
from noisette.training.recipe import Recipe
from noisette.training.report import Facts


def test_the_recipe_can_be_read_back(facts: Facts) -> None:
    run = json.loads(facts.as_json())
    assert Recipe.of(run["recipe"], "run.json") == facts.recipe
    assert run["points"][-1]["epsilon"] == run["epsilon"]


def test_the_folders_of_the_user_are_not_published(facts: Facts) -> None:
    own = with_recipe(
        facts,
        data={"name": "/home/me/mine.csv", "test": "/home/me/test.csv"},
        model={"weights": "/home/me/w.safetensors", "standardised": True},
        public={"data": "/home/you/mine.csv"},
    )
    text = own.as_json()
    assert "/home" not in text
    recipe = json.loads(text)["recipe"]
    assert [recipe["data"]["name"], recipe["model"]["weights"]] == ["mine.csv", "w.safetensors"]
    assert recipe | dict.fromkeys(("data", "model", "public")) == json.loads(json.dumps(asdict(own.recipe))) | (
        dict.fromkeys(("data", "model", "public"))
    )
