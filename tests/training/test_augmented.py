"""Recipes with augmentation: the losses of views, the published model, its files, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from noisette.data import DataSet, load
from noisette.nn import models
from noisette.training.build import TrainingSetup
from noisette.training.evaluation import Outcome
from noisette.training.loop import evaluate, resume, train
from noisette.training.recipe import (
    AugmentationSection,
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    Recipe,
    TrainingSection,
)
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents, page
from noisette.training.report.statement import as_text, statement
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


def run(of: Recipe, data: DataSet) -> Outcome:
    return train(of, data, ledger_path=None, on_step=lambda run, point: None, points=2)


@pytest.mark.parametrize(("model", "side"), [("cnn", 8), ("scattering", 16)])
def test_the_published_model_is_the_one_that_was_tested(model: str, side: int, tmp_path: Path) -> None:
    data = digits(side)
    outcome = run(recipe(model=model), data)
    assert data.test is not None
    inputs, targets = torch.as_tensor(data.test.inputs), torch.as_tensor(data.test.targets)
    scores = outcome.model(inputs)
    torch.testing.assert_close(scores, outcome.model(inputs.flip(-1)))
    assert evaluate(outcome.model, inputs, targets) == outcome.points[-1].test_accuracy
    facts = facts_of(outcome)
    assert "2 views of it, mirrored or shifted" in as_text(statement(facts), title="t")
    assert "averaged over the image and its mirror image" in page(facts)
    for name, content in documents(facts, outcome.model).items():
        (tmp_path / name).write_bytes(content)
    torch.testing.assert_close(SavedModel.of_run(tmp_path).model(inputs), scores)


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
    class Stop(SystemExit):
        pass

    def stop(run, point):
        if run.steps_taken == 2:
            raise Stop

    data, of = digits(16), recipe(model="scattering")
    with pytest.raises(Stop):
        train(of, data, ledger_path=tmp_path / "ledger.jsonl", on_step=stop, checkpoint=tmp_path / "c")
    outcome = resume(of, data, on_step=lambda run, point: None, checkpoint=tmp_path / "c")
    assert outcome.run.steps_taken == outcome.run.steps == 3


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(ValueError, match="give flip = true or shift"):
        recipe(AugmentationSection(views=2))
    with pytest.raises(ValueError, match="shift=-1"):
        recipe(AugmentationSection(shift=-1))
    with pytest.raises(ValueError, match="leave out augmentation or lipschitz"):
        replace(recipe(model="lipschitz-dense"), lipschitz=LipschitzSection(tau=30.0), privacy=PrivacySection())
    with pytest.raises(ValueError, match="ask for 2 or more"):
        TrainingSetup(recipe(AugmentationSection(flip=True), "scattering"), digits(16))
    data = digits()
    flat = replace(data, train=replace(data.train, inputs=data.train.inputs.reshape(300, 64)), test=None)
    with pytest.raises(ValueError, match="for images of three axes"):
        TrainingSetup(recipe(model="linear"), flat)
