"""Recipes: what a file may say, how a wrong one is refused, schemas, and what suits data of one's own."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from noisette import data as data_sets
from noisette.nn import models
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, default_recipe, read_schema

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def read(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return Recipe.read(path)


def test_what_a_file_leaves_out_keeps_its_default(tmp_path):
    recipe = read(tmp_path, '[data]\nname = "mnist"\n[training]\nlr = 2\n')
    assert (recipe.data.name, recipe.training.lr) == ("mnist", 2.0)
    assert isinstance(recipe.training.lr, float)
    assert recipe.privacy == PrivacySection()


DEEP = f"a = {'[' * 3000}{']' * 3000}"


@pytest.mark.parametrize("text", ["not toml", DEEP, "data = 3", "[training]\nseed = true", "[data]\ntarget = 3"])
def test_values_of_another_type_are_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"is not a TOML file|is a table|of the expected type"):
        read(tmp_path, text)


OWN, BOUNDS = {"name": "own.csv"}, {"lipschitz": {"tau": 1.0}}
WEIGHTS = {"weights": "w.safetensors"}
CONTRADICTIONS: list[tuple[dict[str, Any], list[str]]] = [
    # data
    ({"data": OWN | {"holdout": 0.0}}, ["expected 0 < holdout < 1"]),
    ({"data": OWN | {"holdout": 0.2, "test": "later.csv"}}, ["give test or holdout, not both"]),
    ({"data": OWN | {"holdout": 0.2, "users": "u"}, "training": {"batches": "truncated"}}, ["needs records_per_user"]),
    ({"data": OWN | {"users": "u"}, "training": {"batches": "cyclic", "bands": 3}}, ["with users batches are Poisson"]),
    ({"data": OWN | {"unit": "EUR"}}, ["give its bounds as target"]),
    ({"data": OWN | {"columns": {"age": {"kind": "?"}}}}, ["one of number, date, category, hashed, ignored"]),
    ({"data": OWN | {"grey": True}}, ["give image_size"]),
    # the model and its public examples
    ({"model": {"batch_norm": "public"}}, ["takes its statistics from public examples; name their set"]),
    ({"public": {"data": "kmnist"}}, ["or for standardised or whitened features, not None; leave them out"]),
    ({"model": {"batch_norm": "group"}, "public": {"data": "kmnist"}}, ["not group; leave them out"]),
    ({"model": {"batch_norm": "public"}, "public": {"data": "./digits"}}, ["is the set that is trained on"]),
    ({"model": {"batch_norm": "public"}, "public": {"data": "kmnist", "examples": 1}}, ["fewer have no variance"]),
    ({"model": {"whitened": 20, "standardised": True}}, ["leave out standardised, or whitened"]),
    ({"model": {"mirrored": True}}, ["leave mirrored out"]),
    ({"model": WEIGHTS, "projection": {"components": 8, "noise_multiplier": 2.0}}, ["leave out one of the two"]),
    # layers that bound the gradient
    ({"lipschitz": {"logit_clip": 0.1}}, ["give lipschitz.tau"]),
    ({"lipschitz": {"tau": -1.0, "logit_clip": -2.0}}, ["tau=-1.0", "logit_clip=-2.0"]),
    (BOUNDS | {"privacy": {"max_grad_norm": 0.5, "clipping": "per-layer"}}, ["leave out max_grad_norm, clipping"]),
    (BOUNDS | {"model": {"batch_norm": "group"}}, ["batch_norm = 'group' has no Lipschitz bound"]),
    (BOUNDS | {"augmentation": {"flip": True}}, ["leave out augmentation or lipschitz"]),
    (BOUNDS | {"training": {"class_weights": {"0": 1.0}}}, ["leave out target and class_weights"]),
    # numbers outside their domain, and names
    (
        {"privacy": {"epsilon": 0.0, "delta": 1.0}, "training": {"epochs": -1.0}},
        ["epsilon=0.0", "delta=1.0", "epochs=-1"],
    ),
    ({"privacy": {"noise_multiplier": 0.0, "accountant": "clt"}}, ["plier=0.0", "pld, rdp, moments, got 'clt'"]),
    ({"training": {"momentum": 1.0, "lr_epochs": 0.0}}, ["momentum=1.0", "lr_epochs=0.0"]),
    # training
    ({"privacy": {"clipping": "global"}}, ["to be one of flat, per-layer, automatic, adaptive, got 'global'"]),
    ({"privacy": {"engine": "ghost"}}, ["one of book-keeping, reweight-gp, per-example-loop, vmap, got 'ghost'"]),
    ({"training": {"optimizer": "adam", "momentum": 0.9}}, ["momentum is that of SGD"]),
    ({"training": {"optimizer": "adam", "lr": None}}, ["the rule for learning rates is for SGD"]),
    ({"training": {"averaging": 0.9, "average_last": 0.5}}, ["give one of them"]),
    ({"training": {"lr": 1e300, "seed": 10**23}}, ["lr = 1e+300", "less than or equal to 1000000", "seed ="]),
    ({"augmentation": {"views": 2}}, ["give flip = true or shift"]),
    ({"training": {"class_weights": {"yes": 0.0, "no": 1.0}}}, ["class_weights"]),
    ({"data": OWN | {"target": [0, 1]}, "training": {"class_weights": {"a": 1.0}}}, ["class_weights are for classes"]),
    ({"projection": {"components": 60}}, ["give both, or neither"]),
]


@pytest.mark.parametrize(("tables", "said"), CONTRADICTIONS, ids=str)
def test_what_contradicts_itself_is_told_with_the_way_out(tables, said):
    with pytest.raises(ValueError) as error:
        Recipe.of(tables, "it")
    assert all(words in str(error.value) for words in said)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_committed_recipes_are_valid(path):
    name = Recipe.read(path).data.name
    assert name in data_sets.names()
    assert path.stem.startswith(name.removesuffix("-words")) or path.stem.endswith("-noise")


def test_every_default_names_a_model_that_exists_and_that_of_the_demonstration_is_its_recipe():
    for data in (*data_sets.names(), "other"):
        assert default_recipe({"name": data}).model.name in models.names()
    assert vars(Recipe.read(EXPERIMENTS / "digits.toml")) == vars(default_recipe({"name": "digits"}))


# Data of one's own

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


def test_a_schema_is_the_data_of_a_recipe(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    found = read_schema(tmp_path / "schema.toml")
    assert (found["label"], found["target"], found["unit"], found["size"]) == ("pay", (0, 1200.5), "EUR", 700)
    assert list(found["columns"]) == ["age", "job title"]
    recipe = Recipe(DataSection("own.csv", **found))
    assert Recipe.of(asdict(recipe), "again") == recipe
    (tmp_path / "recipe.toml").write_text('[data]\nname = "own.csv"\n' + SCHEMA.replace("[columns.", "[data.columns."))
    assert Recipe.read(tmp_path / "recipe.toml") == replace(recipe, model=ModelSection("table"))


SUITED: list[tuple[str, dict[str, Any], str]] = [
    ('name = "own.csv"\ntext = "review"', {}, "ranked-word-counts"),
    *(('name = "own.csv"', {}, "table"), ('name = "photos"', {}, "cnn"), ("", {}, "cnn")),
    ("", {"name": "own.csv", "text": "review"}, "ranked-word-counts"),
]


@pytest.mark.parametrize(("data", "given", "model"), SUITED)
def test_a_recipe_that_names_no_model_has_the_one_of_the_command_line(data, given, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for section, name in (("", model), ("[model]\nwhitened = 0\n", model), ('[model]\nname = "linear"\n', "linear")):
        Path("recipe.toml").write_text(f"[data]\n{data}\n{section}")
        recipe = Recipe.read(Path("recipe.toml"), given)
        assert recipe.model.name == name
        assert default_recipe({"name": recipe.data.name, "text": recipe.data.text}).model.name == model


@pytest.mark.parametrize("size", [1, 150, 1000, 5_000_000])
@pytest.mark.parametrize("text", [{}, {"text": "review"}])
def test_the_default_batch_and_delta_fit_the_declared_size(size, text):
    recipe = default_recipe({"name": "own.csv", "size": size, **text})
    assert 1 <= recipe.training.batch_size <= size
    assert recipe.privacy.delta < 1 / size
    if size == 1000:  # what is held out is in no batch
        assert default_recipe({"name": "own.csv", "size": 10_000, "holdout": 0.9, **text}).training == recipe.training


def test_a_table_of_classes_has_a_larger_norm_where_there_is_signal_for_its_noise() -> None:
    def norm(epsilon: float, **facts: Any) -> float:
        return default_recipe({"name": "own.csv", "size": 4000} | facts, epsilon=epsilon).privacy.max_grad_norm

    assert [norm(3.0), norm(2.0)] == [3.0, 2.0]
    assert [norm(3.0, holdout=0.5), norm(3.0, target=(0.0, 9.0)), norm(3.0, name="adult", size=0)] == [2.0, 2.0, 3.0]


def test_a_model_and_an_optimizer_that_are_chosen_have_their_own_settings():
    assert default_recipe({"name": "own.csv"}, model="linear").model.name == "linear"
    assert default_recipe({"name": "sst2"}, model="transformer").training.optimizer == "adam"
    adam = default_recipe({"name": "mnist"}, optimizer="adam").training
    assert (adam.optimizer, adam.momentum) == ("adam", 0.0)
    assert (adam.lr or 0) < 0.01
    assert [default_recipe({"name": "sst2"}, backbone=one).training.lr for one in (None, "minilm-l6")] == [10.0, 0.05]
    assert default_recipe({"name": "sst2"}, "transformer", optimizer="sgd").training.lr == 1.0
    assert default_recipe({"name": "mnist"}, optimizer="sgd") == default_recipe({"name": "mnist"})
    own = {"name": "own.csv", "size": 700}
    assert default_recipe(own).training.lr is None, "the rule gives it"
    assert default_recipe(own, optimizer="adam").training.lr is not None
    assert default_recipe(own | {"text": "review"}).training.lr is not None
