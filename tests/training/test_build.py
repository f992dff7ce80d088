"""What a recipe trains: the norms that stand for batch norm, and the public examples behind them."""

import hashlib
import json
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cut_runs import cut_short, pass_by
from noisette import PrivacyError
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.clipping.rules import STABILITY
from noisette.data import DataSet, Split
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn import models
from noisette.run.per_example import PerExampleClip
from noisette.training import recipe as recipes
from noisette.training.build import TrainingSetup
from noisette.training.loop import Outcome, resume, train
from noisette.training.recipe import BATCH_NORMS, LipschitzSection, ModelSection, PublicSection, Recipe, TrainingSection
from noisette.training.report.facts import facts_of
from noisette.training.report.statement import as_text, settings, statement


def images(name: str, seed: int, *, examples: int = 200, shape: tuple[int, ...] = (1, 8, 8)) -> DataSet:
    """Two kinds of images that differ in the brightness of one half, which a model learns in a few steps."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 2, examples)
    inputs = random.normal(size=(examples, *shape)).astype(np.float32)
    inputs[:, :, :4] += 2 * targets[:, None, None, None]
    split = Split(inputs, targets)
    return DataSet(name, split, split, classes=2, declared_size=200, note="")


DATA, PUBLIC = images("mine", 1), images("others", 2)


def recipe(batch_norm: str | None = "public", **changes: Any) -> Recipe:
    needs_public = batch_norm not in (None, "group")
    settings: dict[str, Any] = {
        "data": recipes.DataSection("mine"),
        "model": ModelSection("papers.davody_2020.networks:bn_300_100", batch_norm=batch_norm),
        "privacy": BUDGET,
        "training": TrainingSection(epochs=1, batch_size=50, lr=0.5, averaging=0.9),
        "public": PublicSection("others", examples=16) if needs_public else PublicSection(),
    }
    return Recipe(**settings | changes)


BUDGET = recipes.PrivacySection(epsilon=8.0, delta=1e-3, accountant="rdp")


def run(of: Recipe, public: DataSet | None = PUBLIC) -> Outcome:
    return train(of, DATA, public=public, ledger_path=None, on_step=pass_by, points=2)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_every_norm_trains_and_is_published(name):
    outcome, kind = run(recipe(name), PUBLIC if recipe(name).public.data else None), BATCH_NORMS[name].resolve()
    assert [type(part) for part in outcome.model.modules() if isinstance(part, kind)] == [kind] * 3
    assert not any(isinstance(part, nn.BatchNorm1d) for part in outcome.model.modules())
    assert 0 < outcome.epsilon <= 8.0
    assert outcome.points[-1].test_accuracy is not None


def test_statistics_are_those_of_the_public_examples_under_the_published_weights():
    outcome = run(recipe("public"))
    chosen = PUBLIC.train.inputs[np.random.default_rng(0).permutation(200)[:16]]
    weights = outcome.model.state_dict()
    first = next(name for name in weights if name.endswith("running_mean")).rpartition(".")[0]
    linear = next(part for part in outcome.model.modules() if isinstance(part, nn.Linear))
    hidden = torch.as_tensor(chosen).flatten(1).double() @ linear.weight.double().T + linear.bias.double()
    torch.testing.assert_close(weights[f"{first}.running_mean"].double(), hidden.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        weights[f"{first}.running_var"].double(), hidden.var(0, correction=0), rtol=1e-4, atol=1e-5
    )
    assert outcome.model.training is False
    inputs, targets = torch.as_tensor(DATA.train.inputs), torch.as_tensor(DATA.train.targets)
    assert (outcome.model(inputs).argmax(1) == targets).double().mean() == outcome.points[-1].test_accuracy


def test_the_seed_says_which_examples_are_public():
    digests = [
        TrainingSetup(recipe(public=PublicSection("others", 16, seed)), DATA, PUBLIC).public_digest
        for seed in (0, 0, 1)
    ]
    expected = np.ascontiguousarray(PUBLIC.train.inputs[np.random.default_rng(0).permutation(200)[:16]])
    assert digests[0] == digests[1] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert digests[2] != digests[0]
    assert TrainingSetup(recipe("group"), DATA).public_digest == ""


def test_public_examples_that_do_not_fit_are_refused():
    for public, message in (
        (None, "give that data set as public"),
        (images("others", 2, shape=(1, 9, 8)), r"have shape \(1, 9, 8\), those of mine \(1, 8, 8\)"),
        (images("others", 2, examples=15), "others has 15 examples, fewer than the 16 public"),
    ):
        with pytest.raises(ValueError, match=message):
            run(recipe(), public)


CNN = ModelSection("cnn", standardised=True)


@pytest.mark.parametrize(
    ("settings", "data", "message"),
    [
        (recipe(), replace(DATA, name="others"), "16 public examples are private records too"),
        (recipe("public", model=ModelSection("mlp", batch_norm="public")), PUBLIC, "no batch norm that batch_norm"),
        (recipe(None, model=CNN, public=PublicSection("others")), PUBLIC, "leave standardised and whitened out"),
        (recipe(None, model=ModelSection("mlp"), lipschitz=LipschitzSection(30.0)), None, "Linear"),
        (recipe(None, model=ModelSection("lipschitz-dense")), None, r"constrains its weights.*\[lipschitz\] tau = 30"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(settings, data, message):
    with pytest.raises((PrivacyError, ValueError), match=message):
        TrainingSetup(settings, DATA, data)


def test_a_run_goes_on_with_the_same_public_examples_and_with_no_others(tmp_path):
    saved, others = cut_short(recipe(), DATA, tmp_path, step=2, public=PUBLIC), images("others", 3)
    with pytest.raises(ValueError, match="public examples or first weights are not those that"):
        resume(recipe(), DATA, public=others, on_step=pass_by, checkpoint=saved)
    outcome = resume(recipe(), DATA, public=PUBLIC, on_step=pass_by, checkpoint=saved)
    assert outcome.run.steps_taken == outcome.run.steps == 4


def test_features_are_standardised_by_the_public_examples():
    data, public = (images(name, seed, shape=(1, 12, 12)) for name, seed in (("mine", 1), ("others", 2)))
    settings = recipe(
        None, model=ModelSection("scattering", standardised=True), public=PublicSection("others", examples=50, seed=3)
    )
    learner = TrainingSetup(settings, data, public)
    chosen = torch.as_tensor(public.train.inputs[np.random.default_rng(3).permutation(200)[:50]])
    plain = models.build("scattering", (1, 12, 12), 2).get_submodule("features")
    of_public, of_private = plain(chosen).double(), plain(torch.as_tensor(data.train.inputs)).double()
    expected = (of_private - of_public.mean(0)) / of_public.std(0, correction=0)
    torch.testing.assert_close(learner.examples.tensors[0].double(), expected, rtol=1e-3, atol=1e-3)
    assert "features.1.mean" in learner.published.state_dict()


def lipschitz(**changes: Any) -> Recipe:
    training = TrainingSection(epochs=8, batch_size=50, lr=30.0, momentum=0.9, cosine=False, averaging=0.9)
    settings = {
        "model": ModelSection("lipschitz-dense"),
        "lipschitz": LipschitzSection(tau=30.0, logit_clip=0.1),
        "training": training,
    }
    return recipe(None, **settings | changes)


def test_a_lipschitz_network_learns_under_the_bound_of_its_layers():
    outcome = run(lipschitz(), None)
    assert isinstance(outcome.run.bound, LipschitzBound)
    assert 0.9 * 8.0 < outcome.epsilon <= 8.0
    assert (outcome.points[-1].test_accuracy or 0) > 0.7
    for weight in (p for p in outcome.run.bound.model.parameters() if p.dim() == 2):
        torch.testing.assert_close(
            torch.linalg.svdvals(weight.double()), torch.ones(min(weight.shape)).double(), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_the_bound_is_that_of_the_loss_or_of_the_clipped_scores(clip):
    parts = TrainingSetup(lipschitz(lipschitz=LipschitzSection(30.0, clip)), DATA).bound.pop_sums()
    assert [part.bound for part in parts] == pytest.approx([clip or 2**0.5] * 2, rel=1e-3), "that of the scores"


MOST = max(len(CLIPPING_RULES), len(ENGINES))
PAIRS = list(islice(zip(cycle(CLIPPING_RULES), cycle(ENGINES), strict=False), MOST))


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_every_rule_and_every_engine_trains_and_is_stated_in_its_own_words(name, engine):
    privacy = replace(BUDGET, clipping=name, engine=engine, max_grad_norm=0.5)
    training = TrainingSection(epochs=1, batch_size=50, lr=0.5)
    outcome = run(recipe(None, privacy=privacy, model=ModelSection("mlp"), training=training), None)
    assert isinstance(outcome.run.bound, PerExampleClip)
    assert isinstance(outcome.run.bound.clipping, CLIPPING_RULES[name].resolve())
    assert isinstance(outcome.run.bound.engine, ENGINES[engine].resolve())
    assert 0 < outcome.epsilon <= 8.0
    facts = facts_of(outcome)
    text = " ".join(as_text(statement(facts), title="").split())
    assert ("a Euclidean norm of at most 0.5" in text) == (name in ("flat", "per-layer"))
    assert ("clipping count" in text) == (name == "adaptive")
    count = [("gradient", facts.max_grad_norm), ("clipping count", 0.5)] if name == "adaptive" else []
    assert [(part.name, part.sensitivity) for part in facts.parts] == count
    assert json.loads(facts.as_json())["recipe"]["privacy"]["clipping"] == name
    assert dict(settings(facts)["Privacy"])["clipping"] == name


def test_the_stability_that_the_statement_names_is_that_of_automatic_clipping():
    assert f"+ {STABILITY})" in CLIPPING_RULES["automatic"].statement
