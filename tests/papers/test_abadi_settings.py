"""Lengths of runs, compared with epochs that were computed independently of this project (scipy and mpmath)."""

from __future__ import annotations

import math

import pytest

from papers.abadi_2016 import figure_2, figure_3, figure_6, panels
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.setting import Plan


@pytest.mark.parametrize(
    ("panel", "moments", "pld", "flat"),
    [
        (panel, *epochs)
        for panel, epochs in zip(
            figure_3.PANELS, [(14.3, 50.9, 29.0), (103.3, 171.9, 215.0), (306.3, 412.6, 706.4)], strict=True
        )
    ],
)
def test_epochs_of_figure_3_agree_with_an_independent_computation(
    panel: panels.Panel, moments: float, pld: float, flat: float
) -> None:
    assert panel.setting.epochs(panel.steps_by_moments) == pytest.approx(moments, rel=5e-3)
    assert panel.setting.epochs(panel.steps_by_pld) == pytest.approx(pld, rel=5e-3)
    assert panel.setting.epochs(panel.steps_if_flat) == pytest.approx(flat, rel=5e-3)


def test_two_layers_on_one_lot_are_one_release_with_less_noise() -> None:
    assert Mnist(noise=8.0).step.noise_multiplier == pytest.approx(8 / math.sqrt(2))
    assert Mnist().step.sampling_rate == 0.01


def test_a_recipe_has_the_settings_of_the_paper() -> None:
    recipe = Plan(Mnist(noise=2.0, pca_noise=4.0), 3, 8.0, "pld").recipe
    assert (recipe.data.name, recipe.model.name) == ("mnist", "mlp1000")
    assert (recipe.projection.components, recipe.projection.noise_multiplier) == (60, 4.0)
    privacy, training = recipe.privacy, recipe.training
    assert (privacy.epsilon, privacy.delta, privacy.noise_multiplier, privacy.max_grad_norm) == (8.0, 1e-5, 2.0, 4.0)
    assert privacy.clipping == "per-layer"
    assert (training.batch_size, training.lr, training.lr_end, training.lr_epochs) == (600, 0.1, 0.052, 10.0)
    assert (training.seed, training.momentum, training.averaging) == (3, 0.0, 0.0)


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


# Epochs within the budget with three layers, by moments; computed apart from this project.
@pytest.mark.parametrize(("panel", "epochs"), list(zip(figure_6.PANELS, (44.3, 82.7, 295.4), strict=True)))
def test_epochs_of_figure_6_agree_with_an_independent_computation(panel: panels.Panel, epochs: float) -> None:
    assert panel.setting.epochs(panel.steps_by_moments) == pytest.approx(epochs, rel=5e-3)
