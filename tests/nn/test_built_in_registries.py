"""Adding a data set or a model takes its file and one line in the registry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from noisette import data
from noisette.data.files import BuiltIn
from noisette.data.load import REGISTRY
from noisette.nn import models
from noisette.training.loop import train
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection


def toy_data(data_dir: Path | None) -> data.DataSet:
    split = data.Split(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.arange(64) % 2)
    return data.DataSet("toy", split, split, classes=2, declared_size=64)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "toy", BuiltIn(toy_data, "four random numbers"))
    toy_model = models.BuiltIn(lambda shape, classes: nn.Linear(*shape, classes), "one linear layer")
    monkeypatch.setitem(models.REGISTRY, "toy-model", toy_model)


def test_a_registered_data_set_and_model_are_known_by_name_and_trained_by_a_recipe() -> None:
    assert "toy" in data.names()
    assert "toy-model" in models.names()
    recipe = Recipe(
        DataSection("toy"), ModelSection("toy-model"), PrivacySection(delta=1e-3), TrainingSection(1, 32, 1.0)
    )
    outcome = train(recipe, data.load(recipe.data.name), ledger_path=None, on_step=lambda run, point: None)
    assert outcome.run.steps_taken == 2
    assert isinstance(outcome.model, nn.Linear)


def test_errors_list_the_registered_names() -> None:
    with pytest.raises(data.DataError, match="yeast, toy; or the path"):
        data.load("absent")
    with pytest.raises(ValueError, match=r"scattering-lipschitz-linear, .*toy-model, or give your own"):
        models.build("absent", (4,), 2)


def test_every_entry_has_a_description_of_one_line() -> None:
    for entry in (*models.REGISTRY.values(), *REGISTRY.values()):
        assert 10 < len(entry.description) < 80
        assert "\n" not in entry.description


def test_names_of_models_are_known_without_torch() -> None:
    code = "import sys; from noisette.nn.models import names; sys.exit(not names() or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
