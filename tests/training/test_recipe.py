"""Recipes: what a file may say, how a wrong one is refused, schemas, and what suits data of one's own."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from noisette import data as data_sets
from noisette.nn import models
from noisette.training.recipe import (
    BATCH_NORMS,
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    PublicSection,
    Recipe,
    TrainingSection,
    default_recipe,
    read_schema,
)

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def read(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return Recipe.read(path)


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    recipe = read(tmp_path, '[data]\nname = "mnist"\n[training]\nlr = 2\n')
    assert recipe.data.name == "mnist"
    assert recipe.training.lr == 2.0
    assert isinstance(recipe.training.lr, float)
    assert recipe.privacy == PrivacySection()


def test_all_misspelled_keys_are_listed_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 problems") as error:
        read(tmp_path, '[privacy]\nepsilom = 1.0\n[trainng]\nlr = 1.0\n[training]\nepochs = "many"\n')
    assert "did you mean 'epsilon'" in str(error.value)
    assert "did you mean 'training'" in str(error.value)
    assert "training: epochs = 'many' is not of the expected type: a valid number" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        f"a = {'[' * 3000}{']' * 3000}",
        "data = 3\n",
        "[training]\nseed = true\n",
        "[training]\nbatch_size = 2.5\n",
        '[model]\nweights = "public"\nfrozen = "features"\n',
        '[data]\ncolumns = "schema"\n',
        "[data]\ntarget = 100\n",
        "[data]\ntarget = [0]\n",
        "[data]\ntarget = [0, 1, 2]\n",
        "[data]\nclasses = [0, 1]\n",
        "[data]\nmean = 0.5\ndeviation = 0.5\n",
    ],
)
def test_values_of_another_type_are_refused(tmp_path: Path, text: str) -> None:
    expected = "is not a TOML file|is a table|of the expected type"
    with pytest.raises(ValueError, match=expected):
        read(tmp_path, text)


def test_numbers_that_would_overflow_are_listed_together() -> None:
    with pytest.raises(ValueError) as error:
        Recipe(training=TrainingSection(lr=1e300, lr_end=1000001.0, seed=10**23))
    assert "lr of at most 1000000, got 1e+300" in str(error.value)
    assert "lr_end of at most 1000000, got 1000001.0" in str(error.value)
    assert f"at most 63 bits, got {10**23}" in str(error.value)


def test_numbers_outside_their_domain_are_listed_together() -> None:
    privacy = {"epsilon": 0.0, "delta": 1.0, "noise_multiplier": 0.0, "accountant": "clt"}
    training = {"epochs": -1.0, "momentum": 1.0, "lr_end": -1.0, "lr_epochs": 0.0}
    with pytest.raises(ValueError) as error:
        Recipe().changed({"privacy": privacy, "projection": {"components": 60}, "training": training}, "it")
    for name, value in (privacy | training).items():
        assert f"{name}={value}" in str(error.value) or name == "accountant"
    assert "pld, rdp, moments, got 'clt'" in str(error.value)
    assert str(error.value).count("noise_multiplier=0.0") == 2, "that of the projection too"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_committed_recipes_are_valid(path: Path) -> None:
    name = Recipe.read(path).data.name
    assert name in data_sets.names()
    of_data = name.removesuffix("-words").removesuffix("-glove")
    assert path.stem.startswith(of_data) or path.stem.endswith("-noise")


def test_the_recipe_of_the_demonstration_is_the_default() -> None:
    assert Recipe.read(EXPERIMENTS / "digits.toml") == default_recipe({"name": "digits"})


def test_every_default_names_a_model_that_exists() -> None:
    for data in (*data_sets.names(), "other"):
        assert default_recipe({"name": data}).model.name in models.names()


PUBLIC = PublicSection("kmnist")


def of(batch_norm: str | None, **changes: Any) -> Recipe:
    return Recipe(**{"data": DataSection("mnist"), "model": ModelSection("resnet-18", batch_norm=batch_norm)} | changes)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_every_norm_is_accepted_with_the_public_examples_that_it_needs(name: str) -> None:
    needs_public = name not in ("group", "layer", "instance")
    assert of(name, public=PUBLIC if needs_public else PublicSection()).model.batch_norm == name
    assert issubclass(BATCH_NORMS[name].resolve(), nn.Module)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: of("public"), "takes its statistics from public examples; name their set"),
        (lambda: of("frozen"), "name their set"),
        (lambda: of(None, public=PUBLIC), "or for standardised or whitened features, not None; leave them out"),
        (lambda: of("group", public=PUBLIC), "not group; leave them out"),
        (lambda: of("public", public=PublicSection("./mnist")), "is the set that is trained on"),
        (lambda: of("public", public=PublicSection("kmnist", examples=1)), "fewer have no variance"),
        (lambda: of("public", public=PublicSection("kmnist", seed=-1)), "seed >= 0"),
    ],
)
def test_norms_without_their_public_examples_and_such_examples_without_a_norm_are_refused(
    recipe: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recipe()


def test_unknown_clipping_rules_and_engines_are_told_at_once_with_the_names_there_are() -> None:
    with pytest.raises(ValueError) as error:
        Recipe(privacy=PrivacySection(clipping="global", engine="ghost"))
    assert "expected clipping to be one of flat, per-layer, automatic, adaptive, got 'global'" in str(error.value)
    assert "one of book-keeping, reweight-gp, per-example-loop, vmap, got 'ghost'" in str(error.value)


LIPSCHITZ = LipschitzSection(tau=30.0, logit_clip=0.1)


def test_what_does_not_fit_a_lipschitz_network_is_told_at_once() -> None:
    with pytest.raises(ValueError) as error:
        LipschitzSection(tau=-1.0, logit_clip=-2.0, allocation="even")
    for told in ("tau=-1.0", "logit_clip=-2.0", "one of global, per-layer, optimal, got 'even'"):
        assert told in str(error.value)
    with pytest.raises(ValueError) as error:
        Recipe(
            lipschitz=LipschitzSection(tau=1.0),
            privacy=PrivacySection(max_grad_norm=0.5),
            model=ModelSection(batch_norm="group"),
        )
    for told in ("leave out max_grad_norm", "batch_norm = 'group' has no Lipschitz bound"):
        assert told in str(error.value)


@pytest.mark.parametrize("setting", [{"clipping": "per-layer"}, {"engine": "reweight-gp"}], ids=str)
def test_clipping_beside_the_bound_of_the_layers_is_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"nothing is clipped; leave out {next(iter(setting))}"):
        Recipe(lipschitz=LIPSCHITZ, privacy=PrivacySection(**setting))  # type: ignore[arg-type]


def test_a_table_without_its_tau_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give lipschitz\.tau"):
        Recipe(lipschitz=LipschitzSection(logit_clip=0.1))


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


def test_a_schema_is_the_data_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    found = read_schema(tmp_path / "schema.toml")
    assert (found["label"], found["target"], found["unit"], found["size"]) == ("pay", (0, 1200.5), "EUR", 700)
    assert list(found["columns"]) == ["age", "job title"]
    recipe = Recipe(DataSection("own.csv", **found))
    assert Recipe.of(asdict(recipe), "again") == recipe
    (tmp_path / "recipe.toml").write_text('[data]\nname = "own.csv"\n' + SCHEMA.replace("[columns.", "[data.columns."))
    assert Recipe.read(tmp_path / "recipe.toml") == replace(recipe, model=ModelSection("table"))


@pytest.mark.parametrize(
    ("data", "given", "model"),
    [
        ('name = "own.csv"', {}, "table"),
        ('name = "own.csv"\ntext = "review"', {}, "ranked-word-counts"),
        ('name = "photos"', {}, "cnn"),
        ('name = "adult"', {}, "table"),
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
        ({"columns": {"age": {"kind": "?"}}}, "expected kind to be one of number, date, category, hashed, ignored"),
    ],
)
def test_contradictions(data: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recipe(DataSection("own.csv", **data))


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


def test_a_model_that_is_chosen_has_its_own_settings() -> None:
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
