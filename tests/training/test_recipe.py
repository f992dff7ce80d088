"""Recipes: what a file may say, and how a wrong one is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from noisette import data as data_sets
from noisette.clipping.registry import CLIPPING_RULES
from noisette.nn import models
from noisette.training.recipe import (
    ALLOCATIONS,
    BATCH_NORMS,
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    PublicSection,
    Recipe,
    TrainingSection,
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


def test_declarations_of_own_files(tmp_path: Path) -> None:
    text = '[data]\nname = "a.csv"\nclasses = ["no", "yes"]\nsize = 300\nranges = {age = [0, 100]}\n'
    recipe = read(tmp_path, text)
    assert recipe.data.classes == ("no", "yes")
    assert recipe.data.ranges == {"age": (0, 100)}


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
        '[data]\ncategories = {ward = "AB"}\n',
        "[data]\nranges = {age = 100}\n",
        "[data]\nranges = {age = [0]}\n",
        "[data]\nranges = {age = [0, 1, 2]}\n",
        "[data]\nclasses = [0, 1]\n",
        "[data]\nmean = 0.5\ndeviation = 0.5\n",
    ],
)
def test_values_of_another_type_are_refused(tmp_path: Path, text: str) -> None:
    expected = "is not a TOML file|is a table|of the expected type"
    with pytest.raises(ValueError, match=expected):
        read(tmp_path, text)


def test_numbers_outside_their_domain_are_listed_together() -> None:
    with pytest.raises(ValueError) as error:
        Recipe.of({"privacy": {"epsilon": 0.0, "delta": 1.0}, "training": {"epochs": -1.0, "momentum": 1.0}}, "it")
    for name in ("epsilon=0.0", "delta=1.0", "epochs=-1.0", "momentum=1.0"):
        assert name in str(error.value)


def test_numbers_that_would_overflow_are_listed_together() -> None:
    with pytest.raises(ValueError) as error:
        Recipe(training=TrainingSection(lr=1e300, lr_end=1000001.0, seed=10**23))
    assert "lr of at most 1000000, got 1e+300" in str(error.value)
    assert "lr_end of at most 1000000, got 1000001.0" in str(error.value)
    assert f"at most 63 bits, got {10**23}" in str(error.value)


def test_the_study_of_2016_fits_in_a_file(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        '[privacy]\nnoise_multiplier = 4\nclipping = "per-layer"\naccountant = "moments"\n'
        "[projection]\ncomponents = 60\nnoise_multiplier = 7\n[training]\nlr_end = 0.052\n",
    )
    assert recipe.privacy == PrivacySection(noise_multiplier=4.0, clipping="per-layer", accountant="moments")
    assert recipe.projection == ProjectionSection(60, 7.0)
    assert recipe.training.lr_end == 0.052


def test_new_numbers_outside_their_domain_are_listed_together() -> None:
    with pytest.raises(ValueError) as error:
        Recipe().changed(
            {
                "privacy": {"noise_multiplier": 0.0, "accountant": "clt"},
                "projection": {"components": 60},
                "training": {"lr_end": -1.0, "lr_epochs": 0.0},
            },
            "it",
        )
    for told in ("noise_multiplier=0.0", "pld, rdp, moments, got 'clt'", "lr_end=-1.0", "lr_epochs=0.0"):
        assert told in str(error.value)
    assert str(error.value).count("noise_multiplier=0.0") == 2, "that of the projection too"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_committed_recipes_are_valid(path: Path) -> None:
    name = Recipe.read(path).data.name
    assert name in data_sets.names()
    of_data = name.removesuffix("-words").removesuffix("-glove")
    assert path.stem.startswith(of_data) or path.stem.endswith("-noise")


def test_the_recipe_of_the_demonstration_is_the_default() -> None:
    assert Recipe.read(EXPERIMENTS / "digits.toml") == Recipe.default_for("digits")


def test_every_default_names_a_model_that_exists() -> None:
    for data in (
        "digits",
        "mnist",
        "fashion-mnist",
        "kmnist",
        "emnist-letters",
        "cifar10",
        "adult",
        "ag-news",
        "other",
    ):
        assert Recipe.default_for(data).model.name in models.names()


PUBLIC = PublicSection("kmnist")


def of(batch_norm: str | None, **changes: Any) -> Recipe:
    return Recipe(**{"data": DataSection("mnist"), "model": ModelSection("resnet-18", batch_norm=batch_norm)} | changes)


def test_norms_and_public_examples_fit_in_a_file(tmp_path: Path) -> None:
    recipe = read(tmp_path, '[model]\nbatch_norm = "public"\n[public]\ndata = "kmnist"\nexamples = 64\nseed = 3\n')
    assert recipe.model.batch_norm == "public"
    assert recipe.public == PublicSection("kmnist", 64, 3)
    assert PublicSection().examples == 128


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_every_norm_is_accepted_with_the_public_examples_that_it_needs(name: str) -> None:
    needs_public = name not in ("group", "layer", "instance")
    assert of(name, public=PUBLIC if needs_public else PublicSection()).model.batch_norm == name
    assert issubclass(BATCH_NORMS[name].resolve(), nn.Module)


def test_every_allocation_of_the_table_can_be_made() -> None:
    for allocation in ALLOCATIONS.values():
        allocation.resolve()()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: of("batch"), "one of public, per-example, per-example-exact, frozen, group, layer, instance"),
        (lambda: of("public"), "takes its statistics from public examples; name their set"),
        (lambda: of("frozen"), "name their set"),
        (lambda: of(None, public=PUBLIC), "or for standardised or whitened features, not None; leave them out"),
        (lambda: of("group", public=PUBLIC), "not group; leave them out"),
        (lambda: of("public", public=PublicSection("mnist")), "is the set that is trained on"),
        (lambda: of("public", public=PublicSection("./mnist")), "is the set that is trained on"),
        (lambda: of("public", public=PublicSection("kmnist", examples=0)), "got examples=0"),
        (lambda: of("public", public=PublicSection("kmnist", examples=1)), "fewer have no variance"),
        (lambda: of("public", public=PublicSection("kmnist", seed=-1)), "seed >= 0"),
    ],
)
def test_norms_without_their_public_examples_and_such_examples_without_a_norm_are_refused(
    recipe: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recipe()


def test_statistics_may_come_with_the_weights() -> None:
    of("frozen", model=ModelSection("resnet-18", weights="a.safetensors", batch_norm="frozen"))


@pytest.mark.parametrize("name", CLIPPING_RULES)
def test_every_clipping_rule_can_be_chosen(name: str) -> None:
    assert Recipe(privacy=PrivacySection(clipping=name)).privacy.clipping == name


def test_unknown_clipping_rules_and_engines_are_told_at_once_with_the_names_there_are() -> None:
    with pytest.raises(ValueError) as error:
        Recipe(privacy=PrivacySection(clipping="global", engine="ghost"))
    assert "expected clipping to be one of flat, per-layer, automatic, adaptive, got 'global'" in str(error.value)
    assert "one of book-keeping, reweight-gp, per-example-loop, vmap, got 'ghost'" in str(error.value)


LIPSCHITZ = LipschitzSection(tau=30.0, logit_clip=0.1)


def test_a_lipschitz_network_fits_in_a_file(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        '[model]\nname = "scattering-lipschitz-linear"\nstandardised = true\n[public]\ndata = "kmnist"\n'
        'examples = 5000\n[lipschitz]\ntau = 30\nlogit_clip = 0.1\nallocation = "global"\n',
    )
    assert recipe.lipschitz == LipschitzSection(30.0, 0.1, "global")
    assert recipe.lipschitz.used
    assert not Recipe().lipschitz.used
    assert Recipe.of(asdict(recipe), "the same") == recipe


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


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (PublicSection(), "standardised = true takes its statistics from public examples; name their set"),
        (PublicSection("mnist"), "is the set that is trained on"),
        (PublicSection("kmnist", examples=1), "fewer have no variance"),
    ],
)
def test_standardised_features_need_public_examples(public: PublicSection, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(None, model=ModelSection("scattering", standardised=True), public=public)
