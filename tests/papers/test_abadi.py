"""Abadi et al. 2016: lengths of runs, finished runs, figures, and networks that start from public convolutions."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from finished_runs import drawn, line, write
from noisette import MomentsAccountant
from noisette.data.built_in_images import shaded_leaves
from noisette.nn import models
from papers import summary
from papers.abadi_2016 import figure_2, figure_3, figure_4, figure_5, figure_6, panels, table_summary
from papers.abadi_2016.figures import PAPER
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.public_convolutions import NETWORKS, contrast, learnt, main
from papers.abadi_2016.runs import Run, make, missing, read
from papers.abadi_2016.setting import Plan, Setting
from papers.abadi_2016.spread import within

# Epochs within the budget by moments, by PLD and by a flat bound; with three layers by moments. Computed apart.
EPOCHS_3 = [(14.3, 50.9, 29.0), (103.3, 171.9, 215.0), (306.3, 412.6, 706.4)]
EPOCHS_6 = [44.3, 82.7, 295.4]


def test_epochs_of_figures_3_and_6_agree_with_an_independent_computation():
    for panel, epochs in zip(figure_3.PANELS, EPOCHS_3, strict=True):
        steps = panel.steps_by_moments, panel.steps_by_pld, panel.steps_if_flat
        assert [panel.setting.epochs(number) for number in steps] == pytest.approx(epochs, rel=5e-3)
    found = [panel.setting.epochs(panel.steps_by_moments) for panel in figure_6.PANELS]
    assert found == pytest.approx(EPOCHS_6, rel=5e-3)


def test_two_layers_on_one_lot_are_one_release_with_less_noise():
    assert Mnist(noise=8.0).step.noise_multiplier == pytest.approx(8 / math.sqrt(2))
    assert Mnist().step.sampling_rate == 0.01


def test_figure_2_has_the_numbers_of_the_paper():
    valid, printed, moments, pld = (line.epsilons([100, 400]) for line in figure_2.LINES)
    assert printed == pytest.approx([9.339, 24.205], abs=5e-4)
    assert moments == pytest.approx([1.2586, 2.5759], abs=5e-4)
    assert pld == pytest.approx([0.9469, 2.0334], rel=5e-3)
    # Computed elsewhere with the classical noise of the Gaussian mechanism in place of the exact one.
    assert all(ours <= looser for ours, looser in zip(valid, [26.4, 82.3], strict=True))
    assert all(ours > optimistic for ours, optimistic in zip(valid, printed, strict=True))
    for curve in figure_2.LINES:
        for epoch, number in curve.printed.items():
            assert curve.epsilons([epoch]) == pytest.approx([number], abs=0.03)


SHORT = Plan(Mnist(), 0, 2.0, "moments")
LONG = Plan(Mnist(), 0, 2.0, "pld")


def run(*points: tuple[int, float], seed: int = 0, setting: Setting | None = None) -> Run:
    return Run(setting or Mnist(), seed, points[-1][0], 1.0, points)


def test_a_longer_run_replaces_a_shorter_plan_and_not_the_reverse(tmp_path):
    assert missing([SHORT], read(write([LONG], tmp_path))) == []
    tighter = run((round(0.999 * SHORT.steps), 0.9))  # made when the accountant allowed a few steps less
    assert missing([SHORT], [tighter]) == []
    others = [replace(SHORT, seed=1), replace(SHORT, setting=Mnist(clip=8.0))]
    assert missing([LONG], read(write([SHORT], tmp_path))) == [LONG]
    assert missing([SHORT, *others], read(write([SHORT], tmp_path))) == others


@pytest.mark.parametrize("broken", ['{"setting": {"colour": 1}}', "{"])
def test_a_line_that_is_not_a_run_is_named(tmp_path, broken):
    path = tmp_path / "runs.jsonl"
    path.write_text(line(SHORT) + "\n" + broken + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*runs.jsonl is not a finished run"):
        read(path)


def test_seeds_are_summarised_by_median_and_range():
    spread = within([run((10, accuracy), seed=seed) for seed, accuracy in enumerate((0.9, 0.95, 0.91))], 10)
    assert str(spread) == "91.0 % (90.0 to 95.0, 3 seeds)"
    assert str(within([run((10, 0.9))], 10)) == "90.0 % (1 seed)"
    assert within([run((10, 0.9))], 9) is None


def test_a_run_writes_one_line_of_public_values(tmp_path):
    path, steps, setting = tmp_path / "runs.jsonl", [], Mnist(units=1000, pca_noise=40.0, noise=40.0)
    just_above = 1.0005 * setting.compose(5, MomentsAccountant()).epsilon(delta=0.99e-5)  # with the projection
    plan = Plan(setting, 1, just_above, "moments")
    path.write_text(line(SHORT) + "\n")
    make(plan, drawn("mnist", (1, 28, 28), 0, size=60_000), path, lambda share, accuracy: steps.append(share))
    first, second = path.read_text().splitlines()
    assert first == line(SHORT)
    facts = json.loads(second)
    names = "data setting seed budget steps epsilon noise_multiplier seconds points made_with"
    assert set(facts) == set(names.split())
    assert facts["steps"] == plan.steps == len(steps)
    assert steps[-1] == 1.0
    assert facts["epsilon"] <= plan.epsilon
    assert facts["points"][-1][0] == plan.steps
    assert all(0 <= accuracy <= 1 for _, accuracy in facts["points"])
    assert missing([plan, SHORT], read(path)) == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    plans = figure_4.plans([0, 1, 2], full=False) + figure_5.plans([0], full=False)
    return read(write(plans, tmp_path_factory.mktemp("runs")))


def test_the_first_table_has_every_printed_number_of_figures_2_to_6(runs):
    assert next(iter(PAPER.parts)) == summary.NAME
    section = table_summary.section(runs)
    assert [row[0] for row in section.rows if row[0]] == [f"figure {k}" for k in range(2, 7)]
    printed = ["9.34", "24.22", "1.26", "2.55", "90.0 %", "95.0 %", "97.0 %", "90.0 %", "67.0 %", "70.0 %", "73.0 %"]
    columns = dict(zip(section.header, zip(*section.rows, strict=True), strict=True))
    assert [cell for cell in columns["paper"] if cell[0].isdigit()] == printed
    assert (columns["ours"][-3:], columns["seeds"][4:7]) == (("not run",) * 3, ("3",) * 3)
    assert all(row[-1] for row in section.rows[4:])


def test_an_accuracy_is_never_shown_below_its_epsilon():
    """One run of one step with a known epsilon: nothing is shown below it, the accuracy at every epsilon above."""
    setting = figure_3.PANELS[1].setting
    runs = [Run(setting, 0, 1, 1.0, ((1, 0.5),))]
    assert 0.5 < setting.compose(1, panels.MOMENTS).epsilon(delta=1e-5) < 1
    row = next(row for row in figure_4.section(runs).rows if row[:2] == ("1e-5", "ours, moments accountant"))
    assert row[2:] == ("", "", *["50.0 %"] * 4)


@pytest.fixture(scope="module")
def leaves():
    return torch.from_numpy(shaded_leaves(40, seed=0))


def test_a_pictures_twin_is_half_the_batch_away():
    apart = torch.eye(4)
    assert contrast(torch.cat([apart, apart])) < contrast(torch.cat([apart, apart.flip(0)]))
    assert contrast(torch.ones(6, 3)).item() == pytest.approx(np.log(5)), "every other picture is as likely"


def test_a_seed_gives_the_same_weights_and_features_of_unit_mean_square(leaves):
    weights, again = learnt(leaves, steps=2), learnt(leaves, steps=2)
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    model = models.build("cifar-tutorial", (3, 32, 32), 10)
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown
    assert all(name.startswith("head.") for name in missing)
    with torch.no_grad():
        assert model.get_submodule("features")(leaves).square().mean().item() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_command_writes_a_file_that_its_network_accepts(network, tmp_path, monkeypatch):
    file = tmp_path / "public.safetensors"
    monkeypatch.setattr("papers.abadi_2016.public_convolutions.IMAGES", 40)
    made = "papers.abadi_2016.public_convolutions.learnt"
    monkeypatch.setattr(made, lambda leaves, name: learnt(leaves, name, steps=1))
    monkeypatch.setattr(sys, "argv", ["public_convolutions", str(file), "--network", network])
    main()
    model = models.pretrained(models.build(network, (3, 32, 32), 10), file)
    assert isinstance(model, models.FixedFeatures), "the features are computed once"
