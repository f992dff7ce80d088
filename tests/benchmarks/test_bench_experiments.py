from __future__ import annotations

import pytest

from benchmarks.steps.cell import Cell
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.methods import METHODS
from benchmarks.steps.models import MODELS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_name_models_and_methods_that_exist(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert {cell.name for cell in experiment.cells} <= set(MODELS)
    assert set(experiment.methods) <= set(METHODS)
    assert experiment.methods[0] == "plain"
    assert len(set(experiment.cells)) == len(experiment.cells)


def test_every_model_is_in_some_experiment() -> None:
    assert {cell.name for experiment in EXPERIMENTS.values() for cell in experiment.cells} == set(MODELS)


def test_targets_are_those_declared() -> None:
    cells = EXPERIMENTS["targets"].cells
    assert {(cell.name, cell.batch): (cell.target, cell.target_compiled) for cell in cells} == {
        ("mlp", 128): (1.1, 1.0),
        ("mlp", 1024): (0.95, 1.0),
        ("cnn", 128): (0.95, 0.9),
        ("rnn", 128): (1.2, 1.2),
        ("lstm", 128): (1.5, 1.5),
        ("gru", 128): (1.5, 1.5),
        ("transformer", 128): (1.15, 1.05),
        ("resnet18-cifar", 32): (1.15, 1.15),
        ("vgg16-cifar", 32): (1.15, 1.15),
    }


def test_targets_are_held_against_both_plain_trainings_and_all_of_opacus() -> None:
    methods = EXPERIMENTS["targets"].methods
    assert methods[:4] == ("plain", "plain-compiled", "compiled", "captured")
    assert {name for name in METHODS if name.startswith("Opacus")} <= set(methods)


def test_a_choice_of_models_and_methods_keeps_plain_training() -> None:
    chosen = EXPERIMENTS["targets"].only(["cnn"], ["nxBP"], None, None)
    assert chosen.cells == (Cell("cnn", 128, target=0.95, target_compiled=0.9),)
    assert chosen.methods == ("plain", "nxBP")


def test_a_target_holds_at_its_batch_size_only() -> None:
    chosen = EXPERIMENTS["targets"].only(["mlp"], None, [8, 128], None)
    assert chosen.cells == (Cell("mlp", 8), Cell("mlp", 128, target=1.1, target_compiled=1.0))


def test_image_sizes_apply_to_models_of_any_image_size() -> None:
    assert [cell.image for cell in EXPERIMENTS["fig8"].only(["vgg11"], None, None, [32, 64]).cells] == [32, 64]
    assert EXPERIMENTS["fig5"].only(None, None, None, [64]).cells == EXPERIMENTS["fig5"].cells
