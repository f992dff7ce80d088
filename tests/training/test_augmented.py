"""Recipes with views of records and with whitened features: what is published."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cut_runs import cut_short, pass_by
from noisette.data import DataSet, Split, load
from noisette.nn import Whitening, models
from noisette.training.build import TrainingSetup
from noisette.training.loop import Outcome, resume, train
from noisette.training.recipe import Recipe
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents
from noisette.training.report.statement import as_text, settings, statement
from noisette.training.saved_model import SavedModel

TABLES = {
    "data": {"name": "digits"},
    "privacy": {"epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"},
    "training": {"epochs": 1, "batch_size": 200, "lr": 0.5},
}


def saved(outcome: Outcome, folder: Path) -> nn.Module:
    """The model of a run, loaded from its files."""
    for name, content in documents(facts_of(outcome), outcome.model).items():
        (folder / name).write_bytes(content)
    return SavedModel.of_run(folder).model


def of_views(model: str, **section: object) -> Recipe:
    return Recipe.of(TABLES | {"model": {"name": model}, "augmentation": section}, "a test")


def test_a_run_with_views_of_its_records_says_so_and_is_resumed(tmp_path):
    of, data = of_views("cnn", views=2, flip=True, shift=1), load("digits")
    outcome = resume(of, data, on_step=pass_by, checkpoint=cut_short(of, data, tmp_path, step=2))
    assert outcome.run.steps_taken == outcome.run.steps == 7
    assert "2 views of it, mirrored or shifted" in as_text(statement(facts_of(outcome)), title="t")


def test_what_cannot_be_augmented_is_refused(data):
    with pytest.raises(ValueError, match="fixed features are computed once"):
        TrainingSetup(of_views("scattering", flip=True), data)
    flat = replace(data, train=replace(data.train, inputs=data.train.inputs.reshape(400, -1)))
    with pytest.raises(ValueError, match="for images of three axes"):
        TrainingSetup(of_views("linear", flip=True), flat)


# Features whitened by public examples

OF_PUBLIC = {"model": {"name": "scattering", "whitened": 20}, "public": {"data": "others", "examples": 60}}
WHITENED = Recipe.of(TABLES | OF_PUBLIC, "a test")


def enlarged(name: str, inputs: np.ndarray, targets: np.ndarray) -> DataSet:
    return DataSet(name, Split(inputs.repeat(2, 2).repeat(2, 3), targets), None, 10, len(inputs))


@pytest.fixture(scope="module")
def data():
    digits = load("digits").train
    return enlarged("digits", digits.inputs[:400], digits.targets[:400])


@pytest.fixture(scope="module")
def public():
    digits = load("digits").train
    return enlarged("others", digits.inputs[400:480].copy()[..., ::-1].copy(), digits.targets[400:480])


def test_the_published_model_whitens_what_it_is_given(tmp_path, data, public):
    outcome = train(WHITENED, data, public=public, ledger_path=tmp_path / "ledger.jsonl", on_step=pass_by, points=1)
    assert isinstance(outcome.model, models.FixedFeatures)
    features, whitening = outcome.model.features
    assert isinstance(whitening, Whitening)
    assert whitening.components.shape[0] == 20
    inputs = torch.as_tensor(data.train.inputs[:5])
    torch.testing.assert_close(outcome.model(inputs), outcome.model.head(whitening(features(inputs))))
    facts = facts_of(outcome)
    text = as_text(statement(facts), title="t")
    assert "The whitening of the fixed features takes statistics from 60 examples of others" in " ".join(text.split())
    rows = dict(settings(facts)["Model"])
    assert (rows["whitened"], rows["public examples"]) == ("20", "60")
    torch.testing.assert_close(saved(outcome, tmp_path)(inputs), outcome.model(inputs))


def test_a_resumed_run_keeps_its_constants(tmp_path, monkeypatch, data, public):
    saved = cut_short(WHITENED, data, tmp_path, step=1, public=public)
    again: list[object] = []
    monkeypatch.setattr(Whitening, "of_public", lambda *given: again.append(given))
    outcome = resume(WHITENED, data, public=public, on_step=pass_by, checkpoint=saved)
    assert not again
    assert outcome.run.steps_taken == outcome.run.steps == 2
    assert isinstance(outcome.model, models.FixedFeatures)
    assert outcome.model.features[1].components.abs().sum() > 0
