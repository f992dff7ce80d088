"""Lengths of runs against the table of epochs that was computed apart from this project (scipy and mpmath)."""

from __future__ import annotations

import math

import pytest

from noisette import models
from noisette.accounting import Gaussian, MomentsAccountant
from noisette.reproduce.abadi_2016 import figure_2, figure_3, figure_4, figure_5
from noisette.reproduce.abadi_2016.setting import Plan, Setting

# Epochs within the budget: per layer by moments, per layer by PLD, flat by moments.
EPOCHS = {
    "large noise": (14.3, 50.9, 29.0),
    "medium noise": (103.3, 171.9, 215.0),
    "small noise": (306.3, 412.6, 706.4),
}


@pytest.mark.parametrize("panel", figure_3.PANELS, ids=lambda panel: panel.name)
def test_the_budget_of_figure_3_lasts_as_many_epochs_as_computed_elsewhere(panel: figure_3.Panel) -> None:
    moments, pld, flat = EPOCHS[panel.name]
    assert panel.setting.epochs(panel.steps_by_moments) == pytest.approx(moments, rel=5e-3)
    assert panel.setting.epochs(panel.steps_by_pld) == pytest.approx(pld, rel=5e-3)
    assert panel.setting.epochs(panel.steps_if_flat) == pytest.approx(flat, rel=5e-3)


def test_two_layers_on_one_lot_are_one_release_with_less_noise() -> None:
    assert Setting(noise=8.0).step.noise_multiplier == pytest.approx(8 / math.sqrt(2))
    assert Setting().step.sampling_rate == 0.01


def test_without_components_there_is_no_release_of_them_and_the_budget_lasts_longer() -> None:
    assert Setting(pca_noise=5.0).projection == {Gaussian(5.0): 1}
    assert Setting(components=0).projection == {}
    shorter, longer = (Plan(Setting(components=k), 0, 2.0, "moments").steps for k in (60, 0))
    assert shorter < longer


def test_a_recipe_says_what_the_paper_did() -> None:
    recipe = Plan(Setting(noise=2.0, pca_noise=4.0), 3, 8.0, "pld").recipe
    assert (recipe.data.name, recipe.model.name) == ("mnist", "mlp1000")
    assert (recipe.projection.components, recipe.projection.noise_multiplier) == (60, 4.0)
    privacy, training = recipe.privacy, recipe.training
    assert (privacy.epsilon, privacy.delta, privacy.noise_multiplier, privacy.max_grad_norm) == (8.0, 1e-5, 2.0, 4.0)
    assert privacy.per_layer
    assert (training.batch_size, training.lr, training.lr_end, training.lr_epochs) == (600, 0.1, 0.052, 10.0)
    assert (training.seed, training.momentum, training.averaging) == (3, 0.0, 0.0)


def test_every_setting_of_every_grid_has_a_recipe() -> None:
    for plan in figure_4.plans([0], full=True) + figure_5.plans([0], full=True):
        assert plan.recipe.training.batch_size == plan.setting.lot


def test_the_small_grid_is_part_of_the_full_one_and_changes_one_setting_at_a_time() -> None:
    few, full = ({plan.setting for plan in figure_5.plans([0], full=full)} for full in (False, True))
    assert few < full
    for sweep in figure_5.SWEEPS:
        assert set(sweep.few) <= set(sweep.values)
        for value in sweep.values:
            setting, reference = vars(sweep.setting(value)), vars(figure_5.REFERENCE)
            assert {name for name in reference if setting[name] != reference[name]} <= set(sweep.fields)


def test_accuracies_of_figure_3_serve_the_reference_of_figure_5() -> None:
    reference = Plan(figure_5.REFERENCE, 0, figure_5.EPSILON, MomentsAccountant.name)
    longer = figure_3.plans([0])[1]
    assert longer.setting == reference.setting
    assert longer.steps > reference.steps


def test_figure_2_has_the_numbers_of_the_paper() -> None:
    valid, printed, moments, pld = (line.epsilons([100, 400]) for line in figure_2.LINES)
    assert printed == pytest.approx([9.339, 24.205], abs=5e-4)
    assert moments == pytest.approx([1.2586, 2.5759], abs=5e-4)
    assert pld == pytest.approx([0.9469, 2.0334], rel=5e-3)
    # Computed elsewhere with the classical noise of the Gaussian mechanism in place of the exact one.
    assert all(ours <= looser for ours, looser in zip(valid, [26.4, 82.3], strict=True))
    assert all(ours > optimistic for ours, optimistic in zip(valid, printed, strict=True))
    for line in figure_2.LINES:
        for epoch, number in line.printed.items():
            assert line.epsilons([epoch]) == pytest.approx([number], abs=0.03)


@pytest.mark.parametrize("units", next(sweep.values for sweep in figure_5.SWEEPS if sweep.fields == ("units",)))
def test_every_number_of_hidden_units_has_its_network(units: int) -> None:
    network = models.build(Setting(units=units).model, (60,), 10)
    assert [p.shape for p in network.parameters()] == [(units, 60), (10, units)]
