"""What is measured: models and experiments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.steps.cell import Cell
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.large_models import VOCABULARY, bert_base, gpt2, vit_small
from benchmarks.steps.methods import METHODS
from benchmarks.steps.models import MODELS, Model
from benchmarks.steps.sgd import Data

# Trainable numbers of the published architectures; norms with a scale and a shift for each channel.
PARAMETERS = {
    "mlp": 136_074,
    "mlp-4": 136_074 + 2 * (256 * 256 + 256),
    "cnn": 129_388,
    "rnn": 21_514,
    "lstm": 82_186,
    "transformer": 483_002,
    "resnet18-cifar": 11_173_962,
    "vgg16-cifar": 14_728_266,
    "resnet18": 11_181_642,
    "resnet34": 21_289_802,
    "resnet50": 23_528_522,
    "resnet101": 42_520_650,
    "vgg11": 128_807_306 + 2 * 2752,
    "vgg16": 134_301_514 + 2 * 4224,
    "vgg19": 139_611_210 + 2 * 5504,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_models_have_as_many_parameters_as_the_published_ones(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in MODELS[name].build().parameters()) == parameters


@pytest.mark.parametrize("build", [partial(vit_small, 24, 1, 32), partial(bert_base, 24, 1), partial(gpt2, 24, 1)])
def test_models_of_transformers_take_private_steps_of_finite_weights(build: Callable[[], nn.Module]) -> None:
    pytest.importorskip("transformers")
    words = VOCABULARY.get({bert_base: "bert", gpt2: "gpt2"}.get(build.func, ""))
    model = Model("small", build, (7,) if words else (3, 32, 32), 2, words, (7,) if build.func is gpt2 else ())
    trained = model.build()
    METHODS["BookKeeping"](trained, Data(*model.data(2, None, "cpu")))()
    assert all(p.isfinite().all() for p in trained.parameters())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("vit-small", "bert-base", "gpt2")])
def test_models_score_each_class_of_their_own_data(name: str) -> None:
    device = "cpu" if name.startswith("lipschitz") else "meta"  # where weights are projected as they are made
    with torch.device(device):
        cell = Cell(name, batch=3)
        inputs, targets, _ = cell.data(device)
        scores = MODELS[name].build()(inputs)
    assert scores.shape == (3, MODELS[name].classes)
    assert targets.shape == (3,)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_name_models_and_methods_that_exist(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert {cell.name for cell in experiment.cells} <= set(MODELS)
    assert set(experiment.methods) <= set(METHODS)
    assert experiment.methods[0] == "plain"
    assert len(set(experiment.cells)) == len(experiment.cells)


def test_every_model_is_in_some_experiment() -> None:
    assert {cell.name for experiment in EXPERIMENTS.values() for cell in experiment.cells} == set(MODELS)


def test_a_choice_of_models_and_methods_keeps_plain_training() -> None:
    chosen = EXPERIMENTS["targets"].only(["cnn"], ["nxBP"], None, None)
    assert chosen.cells == (Cell("cnn", 128, target=0.95, target_compiled=0.9),)
    assert chosen.methods == ("plain", "nxBP")


def test_a_target_holds_at_its_batch_size_only() -> None:
    chosen = EXPERIMENTS["targets"].only(["mlp"], None, [8, 128], None)
    assert chosen.cells == (Cell("mlp", 8), Cell("mlp", 128, target=1.1, target_compiled=1.0))
