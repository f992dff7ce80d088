"""Recipes with declared means and deviations, and with standardised weights."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch

from noisette.data import load
from noisette.nn import MirrorAverage, Standardise
from noisette.training.build import TrainingSetup
from noisette.training.loop import train
from noisette.training.recipe import (
    AugmentationSection,
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    Recipe,
    TrainingSection,
)
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents, page
from noisette.training.report.statement import as_text, statement
from noisette.training.saved_model import SavedModel


def recipe(model: str = "cnn", *, weights: bool = True, test_flip: bool = False) -> Recipe:
    return Recipe(
        DataSection("digits", mean=(0.3,), deviation=(0.37,)),
        ModelSection(model, weight_standardised=weights),
        PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp"),
        TrainingSection(epochs=1, batch_size=200, lr=0.5, averaging=0.9),
        augmentation=AugmentationSection(test_flip=test_flip),
    )


def test_inputs_and_weights_are_standardised_in_the_published_model(tmp_path: Path) -> None:
    data = load("digits")
    outcome = train(recipe(test_flip=True), data, ledger_path=None, on_step=lambda run, point: None, points=1)
    assert data.test is not None
    inputs = torch.as_tensor(data.test.inputs)
    assert isinstance(outcome.model, MirrorAverage)
    layer, model = outcome.model.model
    assert isinstance(layer, Standardise)
    scores, constant = outcome.model(inputs), (inputs - 0.3) / 0.37
    torch.testing.assert_close(scores, (model(constant) + model(constant.flip(-1))) / 2)
    assert sum("original" in name for name, _ in model.named_parameters()) == 2
    facts = facts_of(outcome)
    assert "Inputs: standardised by declared constants" in as_text(statement(facts), title="t")
    for name, content in documents(facts, outcome.model).items():
        (tmp_path / name).write_bytes(content)
    torch.testing.assert_close(SavedModel.of_run(tmp_path).model(inputs), scores)
    html = unescape(page(facts))
    assert "less 0.3, divided by 0.37" in html


def test_fixed_features_are_those_of_standardised_inputs() -> None:
    data = load("digits")
    enlarged = replace(data, train=replace(data.train, inputs=data.train.inputs.repeat(2, 2).repeat(2, 3)), test=None)
    setup = TrainingSetup(recipe("scattering-cnn"), enlarged)
    right = setup.published.features[1]((torch.as_tensor(enlarged.train.inputs[:5]) - 0.3) / 0.37)
    torch.testing.assert_close(setup.examples.tensors[0][:5], right)


def test_contradictions_are_refused() -> None:
    plain = recipe(weights=False)
    with pytest.raises(ValueError, match="give both, or neither"):
        replace(plain, data=DataSection("digits", mean=(0.5,)))
    with pytest.raises(ValueError, match=r"deviation = .0.0,. is not of the expected type: greater than 0"):
        replace(plain, data=DataSection("digits", mean=(0.5,), deviation=(0.0,)))
    with pytest.raises(ValueError, match="leave out mean and deviation"):
        replace(plain, projection=ProjectionSection(8, 20.0))
    with pytest.raises(ValueError, match="give frozen = "):
        replace(plain, model=ModelSection("cnn", weights="w", weight_standardised=True))
    with pytest.raises(ValueError, match="leave weight_standardised out, or lipschitz"):
        replace(recipe("lipschitz-patch"), lipschitz=LipschitzSection(tau=30.0))
    with pytest.raises(ValueError, match="expected 1 or 1 values as mean"):
        TrainingSetup(replace(plain, data=DataSection("digits", mean=(0.5, 0.5), deviation=(1.0,))), load("digits"))
