"""Recipes whose fixed features are whitened by public examples."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch

from noisette.data import DataSet, Split, load
from noisette.errors import PrivacyError
from noisette.nn import Whitening, models
from noisette.training.loop import resume, train
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, PublicSection, Recipe, TrainingSection
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents, page
from noisette.training.report.statement import as_text, statement
from noisette.training.saved_model import SavedModel

RECIPE = Recipe(
    DataSection("digits"),
    ModelSection("scattering", whitened=20),
    PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp"),
    TrainingSection(epochs=1, batch_size=200, lr=0.5),
    public=PublicSection("others", examples=60),
)


def enlarged(name: str, inputs: np.ndarray, targets: np.ndarray) -> DataSet:
    return DataSet(name, Split(inputs.repeat(2, 2).repeat(2, 3), targets), None, 10, len(inputs))


@pytest.fixture(scope="module")
def data() -> DataSet:
    digits = load("digits").train
    return enlarged("digits", digits.inputs[:400], digits.targets[:400])


@pytest.fixture(scope="module")
def public() -> DataSet:
    digits = load("digits").train
    return enlarged("others", digits.inputs[400:480].copy()[..., ::-1].copy(), digits.targets[400:480])


def test_the_published_model_whitens_what_it_is_given(tmp_path: Path, data: DataSet, public: DataSet) -> None:
    outcome = train(RECIPE, data, public=public, ledger_path=None, on_step=lambda run, point: None, points=1)
    assert isinstance(outcome.model, models.FixedFeatures)
    features, whitening = outcome.model.features
    assert isinstance(whitening, Whitening)
    assert whitening.components.shape[0] == 20
    inputs = torch.as_tensor(data.train.inputs[:5])
    torch.testing.assert_close(outcome.model(inputs), outcome.model.head(whitening(features(inputs))))
    facts = facts_of(outcome)
    text = as_text(statement(facts), title="t")
    assert "The whitening of the fixed features takes statistics from 60 examples of others" in " ".join(text.split())
    html = unescape(page(facts))
    assert "whitened, 20 components, 60 examples of others" in html
    for name, content in documents(facts, outcome.model).items():
        (tmp_path / name).write_bytes(content)
    torch.testing.assert_close(SavedModel.of_run(tmp_path).model(inputs), outcome.model(inputs))


def test_a_resumed_run_keeps_its_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: DataSet, public: DataSet
) -> None:
    def stop(run: object, point: object) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        train(RECIPE, data, public=public, ledger_path=tmp_path / "ledger", on_step=stop, checkpoint=tmp_path / "saved")
    again: list[object] = []
    monkeypatch.setattr(Whitening, "of_public", lambda *given: again.append(given))
    outcome = resume(RECIPE, data, public=public, on_step=lambda run, point: None, checkpoint=tmp_path / "saved")
    assert not again
    assert outcome.run.steps_taken == outcome.run.steps == 2
    assert isinstance(outcome.model, models.FixedFeatures)
    assert outcome.model.features[1].components.abs().sum() > 0


def test_public_examples_are_not_the_records(data: DataSet) -> None:
    own = replace(data, name="others")
    with pytest.raises(PrivacyError):
        train(RECIPE, data, public=own, ledger_path=None, on_step=lambda run, point: None)


def test_contradictions_are_refused(data: DataSet, public: DataSet) -> None:
    with pytest.raises(ValueError, match="whitened = 20 takes its statistics from public examples"):
        replace(RECIPE, public=PublicSection())
    with pytest.raises(ValueError, match="leave out standardised, or whitened"):
        replace(RECIPE, model=replace(RECIPE.model, standardised=True))
    with pytest.raises(ValueError, match="whitened >= 0"):
        replace(RECIPE, model=replace(RECIPE.model, whitened=-1))
    wrong = replace(RECIPE, model=ModelSection("cnn", whitened=20))
    with pytest.raises(ValueError, match="no fixed features; leave whitened out"):
        train(wrong, data, public=public, ledger_path=None, on_step=lambda run, point: None)
