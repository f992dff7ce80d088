"""Recipes with augmentation, declared constants, standardised weights and whitened features: what is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cut_runs import cut_short, pass_by
from noisette.data import DataSet, Split, load
from noisette.nn import MirrorAverage, Standardise, Whitening, models
from noisette.training.build import TrainingSetup
from noisette.training.evaluation import Outcome
from noisette.training.loop import resume, train
from noisette.training.recipe import (
    AugmentationSection,
    DataSection,
    ModelSection,
    PrivacySection,
    PublicSection,
    Recipe,
    TrainingSection,
)
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents
from noisette.training.report.statement import as_text, settings, statement
from noisette.training.saved_model import SavedModel

_SECTION = AugmentationSection(views=2, flip=True, test_flip=True)


def recipe(section: AugmentationSection = _SECTION, model: str = "cnn", **training: float) -> Recipe:
    return Recipe(
        DataSection("digits"),
        ModelSection(model),
        PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp"),
        replace(TrainingSection(epochs=2, batch_size=200, lr=0.5, averaging=0.9), **training),  # type: ignore[arg-type]
        augmentation=section,
    )


def digits(side: int = 8) -> DataSet:
    """The first digits, of 8 x 8 pixels or enlarged."""
    data = load("digits")
    assert data.test is not None

    def of(split):
        return replace(
            split,
            inputs=np.kron(split.inputs[:300], np.ones((1, 1, side // 8, side // 8), np.float32)),
            targets=split.targets[:300],
        )

    return replace(data, train=of(data.train), test=of(data.test), declared_size=300)


def run(of: Recipe, data: DataSet, folder: Path | None = None) -> Outcome:
    ledger = folder and folder / "ledger.jsonl"
    return train(of, data, ledger_path=ledger, on_step=pass_by, points=2)


def saved(outcome: Outcome, folder: Path) -> nn.Module:
    """The model of a run, loaded from its files."""
    for name, content in documents(facts_of(outcome), outcome.model).items():
        (folder / name).write_bytes(content)
    return SavedModel.of_run(folder).model


@pytest.mark.parametrize(("model", "side"), [("cnn", 8), ("scattering", 16)])
def test_the_published_model_is_the_one_that_was_tested(model: str, side: int, tmp_path: Path) -> None:
    data = digits(side)
    outcome = run(recipe(model=model), data, tmp_path)
    assert data.test is not None
    inputs, targets = torch.as_tensor(data.test.inputs), torch.as_tensor(data.test.targets)
    scores = outcome.model(inputs)
    torch.testing.assert_close(scores, outcome.model(inputs.flip(-1)))
    assert (scores.argmax(1) == targets).double().mean() == outcome.points[-1].test_accuracy
    facts = facts_of(outcome)
    assert "2 views of it, mirrored or shifted" in as_text(statement(facts), title="t")
    assert dict(settings(facts)["Model"])["test flip"] == "true"
    torch.testing.assert_close(saved(outcome, tmp_path)(inputs), scores)


def test_fixed_features_are_stored_for_each_view() -> None:
    data = digits(16)
    section = AugmentationSection(views=3, flip=True, shift=1)
    setup = TrainingSetup(recipe(section, "scattering"), data)
    model = setup.published
    assert isinstance(model, models.FixedFeatures)
    images, targets = torch.as_tensor(data.train.inputs[:4]), torch.as_tensor(data.train.targets[:4])
    views = [images, images.flip(-1), torch.cat([images[:, :, 1:], images[:, :, -1:]], 2)]
    for k, view in enumerate(views):
        torch.testing.assert_close(setup.examples.tensors[0][:4, k], model.features(view))
    losses = torch.stack([F.cross_entropy(model(view), targets, reduction="none") for view in views]).mean(0)
    torch.testing.assert_close(setup.losses(model.head, setup.examples.tensors[0][:4], targets), losses)


def test_a_run_with_views_is_resumed(tmp_path: Path) -> None:
    data, of = digits(16), recipe(model="scattering")
    outcome = resume(of, data, on_step=pass_by, checkpoint=cut_short(of, data, tmp_path, step=2))
    assert outcome.run.steps_taken == outcome.run.steps == 3


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ask for augmentation\.views of 2 or more"):
        TrainingSetup(recipe(AugmentationSection(flip=True), "scattering"), digits(16))
    data = digits()
    flat = replace(data, train=replace(data.train, inputs=data.train.inputs.reshape(300, 64)), test=None)
    with pytest.raises(ValueError, match="for images of three axes"):
        TrainingSetup(recipe(model="linear"), flat)


# Declared means and deviations, and standardised weights


def standardised(model: str = "cnn", *, weights: bool = True, test_flip: bool = False) -> Recipe:
    return Recipe(
        DataSection("digits", mean=(0.3,), deviation=(0.37,)),
        ModelSection(model, weight_standardised=weights),
        PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp"),
        TrainingSection(epochs=1, batch_size=200, lr=0.5, averaging=0.9),
        augmentation=AugmentationSection(test_flip=test_flip),
    )


def test_inputs_and_weights_are_standardised_in_the_published_model(tmp_path: Path) -> None:
    data = load("digits")
    outcome = train(
        standardised(test_flip=True), data, ledger_path=tmp_path / "ledger.jsonl", on_step=pass_by, points=1
    )
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
    torch.testing.assert_close(saved(outcome, tmp_path)(inputs), scores)
    rows = dict(settings(facts)["Data"])
    assert (rows["mean"], rows["deviation"]) == ("0.3", "0.37")


def test_constants_that_do_not_fit_the_channels_are_refused() -> None:
    two = replace(standardised(), data=DataSection("digits", mean=(0.5, 0.5), deviation=(1.0,)))
    with pytest.raises(ValueError, match="expected 1 or 1 values as mean"):
        TrainingSetup(two, load("digits"))


# Features whitened by public examples

WHITENED = Recipe(
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


def test_a_resumed_run_keeps_its_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: DataSet, public: DataSet
) -> None:
    saved = cut_short(WHITENED, data, tmp_path, step=1, public=public)
    again: list[object] = []
    monkeypatch.setattr(Whitening, "of_public", lambda *given: again.append(given))
    outcome = resume(WHITENED, data, public=public, on_step=pass_by, checkpoint=saved)
    assert not again
    assert outcome.run.steps_taken == outcome.run.steps == 2
    assert isinstance(outcome.model, models.FixedFeatures)
    assert outcome.model.features[1].components.abs().sum() > 0
