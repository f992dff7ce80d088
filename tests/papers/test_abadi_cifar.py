"""A short run of figure 6's network from a file of convolutions, with random images and random weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from finished_runs import drawn
from noisette.data import DataSet
from noisette.nn import models
from noisette.training.loop import train
from noisette.training.recipe import ModelSection, PrivacySection, Recipe, TrainingSection
from noisette.training.report.facts import facts_of
from noisette.training.report.page import documents


@pytest.fixture
def images() -> DataSet:
    return drawn("cifar10", (3, 32, 32), 0, size=50_000)


@pytest.fixture
def convolutions(tmp_path: Path) -> Path:
    weights = models.build("cifar-tutorial", (3, 32, 32), 100).state_dict()
    path = tmp_path / "cifar100.safetensors"
    save_file({name: value for name, value in weights.items() if not name.startswith("head.scores")}, path)
    return path


def short(convolutions: Path, *frozen: str) -> Recipe:
    return Recipe(
        model=ModelSection("cifar-tutorial", str(convolutions), frozen),
        privacy=PrivacySection(
            epsilon=2.0, noise_multiplier=6.0, max_grad_norm=3.0, clipping="per-layer", accountant="moments"
        ),
        training=TrainingSection(epochs=2e-3, batch_size=50, lr=0.05, cosine=False),
    )


def test_frozen_convolutions_do_not_change_and_the_rest_is_trained(images: DataSet, convolutions: Path) -> None:
    outcome = train(short(convolutions, "features"), images, ledger_path=None, on_step=lambda run, point: None)
    kept, learned = load_file(convolutions), outcome.model.state_dict()
    assert outcome.run.steps_taken == 2
    assert len(outcome.run.bound.pop_sums()) == 3
    assert outcome.run.noise_multiplier == pytest.approx(6 / 3**0.5)
    for name, value in kept.items():
        assert torch.equal(learned[name], value) == name.startswith("features")


def test_the_report_names_the_file_by_its_digest_and_excludes_its_records(images: DataSet, convolutions: Path) -> None:
    outcome = train(short(convolutions, "features"), images, ledger_path=None, on_step=lambda run, point: None)
    facts = facts_of(outcome)
    digest = hashlib.sha256(convolutions.read_bytes()).hexdigest()
    assert facts.public_weights == digest
    files = documents(facts, outcome.model)
    statement = " ".join(files["privacy.txt"].decode().split())
    assert digest in statement
    assert "The records that these weights were trained on have no guarantee here" in statement
    assert digest[:8] in files["report.html"].decode()
