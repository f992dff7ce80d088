"""The parts of a recipe about data of the user's own, their schema, and what suits them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from noisette.training.recipe import (
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    Recipe,
    TrainingSection,
    default_recipe,
    read_schema,
)

SCHEMA = """
label = "pay"
target = [0, 1200.5]
unit = "EUR"
size = 700

[columns.age]
kind = "number"
low = 0
high = 100

[columns."job title"]
kind = "category"
categories = ["cook", "smith"]
"""


def test_a_schema_is_the_data_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    found = read_schema(tmp_path / "schema.toml")
    assert (found["label"], found["target"], found["unit"], found["size"]) == ("pay", (0, 1200.5), "EUR", 700)
    assert list(found["columns"]) == ["age", "job title"]
    recipe = Recipe(DataSection("own.csv", **found))
    assert Recipe.of(asdict(recipe), "again") == recipe
    (tmp_path / "recipe.toml").write_text('[data]\nname = "own.csv"\n' + SCHEMA.replace("[columns.", "[data.columns."))
    assert Recipe.read(tmp_path / "recipe.toml") == replace(recipe, model=ModelSection("mlp"))


@pytest.mark.parametrize(
    ("data", "given", "model"),
    [
        ('name = "own.csv"', {}, "mlp"),
        ('name = "own.csv"\ntext = "review"', {}, "ranked-word-counts"),
        ('name = "photos"', {}, "cnn"),
        ('name = "adult"', {}, "mlp"),
        ("", {}, "cnn"),
        ("", {"name": "own.csv", "text": "review"}, "ranked-word-counts"),
    ],
)
def test_a_recipe_that_names_no_model_has_the_one_of_the_command_line(
    data: str, given: dict[str, Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for section, name in (("", model), ("[model]\nwhitened = 0\n", model), ('[model]\nname = "linear"\n', "linear")):
        Path("recipe.toml").write_text(f"[data]\n{data}\n{section}")
        recipe = Recipe.read(Path("recipe.toml"), given)
        assert recipe.model.name == name
        fields = {field: getattr(recipe.data, field) for field in ("name", "text")}
        assert default_recipe(fields).model.name == model


def test_all_problems_of_a_schema_at_once(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text('name = "x"\nlabl = "y"\nsize = "many"\n')
    with pytest.raises(ValueError, match="3 problems") as caught:
        read_schema(tmp_path / "schema.toml")
    for words in ("name is given on the command line", "unknown key labl: did you mean 'label'", "size = 'many'"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"holdout": 0.0}, "expected 0 < holdout < 1"),
        ({"holdout": 0.2, "test": "later.csv"}, "give test or holdout, not both"),
        ({"holdout": 0.2, "users": "u", "records_per_user": 2, "public_users": 9}, "how many are held out is random"),
        ({"target": (0.0, 1.0), "classes": 2}, "give one of them"),
        ({"unit": "EUR"}, "give its bounds as target"),
        ({"target": (0.0,)}, "target = .* is not of the expected type: more values"),
        ({"tokens": 0}, "expected tokens >= 1"),
        ({"columns": {"age": {"kind": "?"}}}, "expected kind to be one of number, category, ignored"),
    ],
)
def test_contradictions(data: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recipe(DataSection("own.csv", **data))


def test_a_lipschitz_network_predicts_classes() -> None:
    with pytest.raises(ValueError, match="the loss of a table lipschitz is for classes"):
        Recipe(
            DataSection("own.csv", target=(0.0, 1.0)),
            ModelSection("lipschitz-rows"),
            PrivacySection(),
            lipschitz=LipschitzSection(tau=30.0),
        )


def test_momentum_is_that_of_sgd() -> None:
    with pytest.raises(ValueError, match="momentum is that of SGD"):
        Recipe(training=TrainingSection(optimizer="adam", momentum=0.9))
    with pytest.raises(ValueError, match="expected optimizer to be one of sgd, adam"):
        Recipe(training=TrainingSection(optimizer="lion"))


@pytest.mark.parametrize("size", [1, 2, 30, 150, 1000, 40_000, 5_000_000])
@pytest.mark.parametrize("text", [{}, {"text": "review"}])
def test_the_default_batch_and_delta_fit_the_declared_size(size: int, text: dict[str, str]) -> None:
    recipe = default_recipe({"name": "own.csv", "size": size, **text})
    assert 1 <= recipe.training.batch_size <= size
    assert recipe.privacy.delta < 1 / size


def test_what_is_held_out_is_not_in_a_batch() -> None:
    half = default_recipe({"name": "own.csv", "size": 10_000, "holdout": 0.9})
    assert half.training == default_recipe({"name": "own.csv", "size": 1000}).training


def test_the_model_suits_the_kind_of_data(tmp_path: Path) -> None:
    assert default_recipe({"name": "own.csv"}).model.name == "mlp"
    assert default_recipe({"name": "own.csv", "text": "review"}).model.name == "ranked-word-counts"
    assert default_recipe({"name": str(tmp_path)}).model.name == "cnn"
    assert default_recipe({"name": "own.csv"}, model="linear").model.name == "linear"
    assert default_recipe({"name": "sst2"}).training.batch_size == 16_838
    assert default_recipe({"name": "sst2"}, model="transformer").training.optimizer == "adam"


def test_another_optimizer_has_another_rate_and_no_momentum() -> None:
    adam = default_recipe({"name": "mnist"}, optimizer="adam").training
    assert (adam.optimizer, adam.momentum) == ("adam", 0.0)
    assert adam.lr < 0.01
    assert default_recipe({"name": "sst2"}, "transformer", optimizer="sgd").training.lr == 1.0
    assert default_recipe({"name": "mnist"}, optimizer="sgd") == default_recipe({"name": "mnist"})


@pytest.mark.parametrize("model", ["word-counts", "ranked-word-counts", "word-counts-and-vectors"])
def test_every_linear_layer_on_counts_has_their_settings(model: str) -> None:
    for data in ({"name": "sst2"}, {"name": "own.csv", "text": "review", "size": 67_349}):
        recipe = default_recipe(data, model)
        assert (recipe.training.optimizer, recipe.training.lr, recipe.privacy.max_grad_norm) == ("sgd", 10.0, 0.7)
        assert recipe.training.batch_size == 16_838
