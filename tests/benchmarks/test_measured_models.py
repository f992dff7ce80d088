"""What is measured: models and experiments."""

from functools import partial

import pytest
import torch

from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.large_models import VOCABULARY, bert_base, gpt2, vit_small
from benchmarks.steps.methods import METHODS
from benchmarks.steps.models import MODELS, Model
from benchmarks.steps.sgd import Data

# Trainable numbers of the published architectures; norms with a scale and a shift for each channel.
PARAMETERS = {"mlp": 136_074, "cnn": 129_388, "rnn": 21_514, "lstm": 82_186, "transformer": 483_002}
PARAMETERS |= {"resnet18-cifar": 11_173_962, "vgg16-cifar": 14_728_266, "resnet18": 11_181_642, "resnet50": 23_528_522}
PARAMETERS["vgg11"] = 128_807_306 + 2 * 2752


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_models_have_as_many_parameters_as_the_published_ones(name, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in MODELS[name].build().parameters()) == parameters


@pytest.mark.parametrize("build", [partial(vit_small, 24, 1, 32), partial(bert_base, 24, 1), partial(gpt2, 24, 1)])
def test_models_of_transformers_take_private_steps_of_finite_weights(build):
    words = VOCABULARY.get({bert_base: "bert", gpt2: "gpt2"}.get(build.func, ""))
    model = Model("small", build, (7,) if words else (3, 32, 32), 2, words, (7,) if build.func is gpt2 else ())
    trained = model.build()
    METHODS["BookKeeping"](trained, Data(*model.data(2, None, "cpu")))()
    assert all(p.isfinite().all() for p in trained.parameters())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_name_models_and_methods_that_exist(name):
    experiment = EXPERIMENTS[name]
    assert {cell.name for cell in experiment.cells} <= set(MODELS)
    assert set(experiment.methods) <= set(METHODS)
    assert (experiment.methods[0], len(set(experiment.cells))) == ("plain", len(experiment.cells))
