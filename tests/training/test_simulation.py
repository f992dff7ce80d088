"""Small runs that stand for large ones: the same noise and steps, and an epsilon of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from command_line import facts as facts_in
from command_line import train as run_command
from noisette import LipschitzBound
from noisette.data import load
from noisette.training.loop import scaled_down, train
from noisette.training.recipe import (
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    Recipe,
    TrainingSection,
)
from noisette.training.report.facts import facts_of
from noisette.training.report.statement import as_text, statement

RECIPE = Recipe(
    DataSection("digits"),
    ModelSection("linear"),
    PrivacySection(epsilon=3.0, delta=1e-4),
    TrainingSection(epochs=8, batch_size=480, lr=4.0),
)
SIZE = 1437


def epsilon(run) -> float:
    """The price by another library."""
    step = dp_event.PoissonSampledDpEvent(run.sampling_rate, dp_event.GaussianDpEvent(run.noise_multiplier))
    return PLDAccountant().compose(step, run.steps).get_epsilon(1e-4)


def test_a_small_run_has_the_noise_and_the_steps_of_the_large_one_and_its_own_price() -> None:
    data = load("digits")
    large = train(RECIPE, data, ledger_path=None, on_step=lambda run, point: None, points=1)
    small = train(scaled_down(RECIPE, 4, SIZE), data, ledger_path=None, on_step=lambda run, point: None, points=1)
    assert small.run.steps == large.run.steps
    assert small.run.expected_batch_size == large.run.expected_batch_size / 4
    assert small.run.sampling_rate == pytest.approx(large.run.sampling_rate / 4)
    assert small.run.noise_multiplier == pytest.approx(large.run.noise_multiplier / 4, rel=2e-3)
    assert large.epsilon == pytest.approx(epsilon(large.run), rel=2e-3)
    assert small.epsilon == pytest.approx(epsilon(small.run), rel=2e-3)
    assert small.epsilon > 2 * large.epsilon
    text = " ".join(as_text(statement(facts_of(small)), title="t").split())
    assert "SIMULATION: this run stands for one that is 4 times as large, with batches of 480" in text
    assert f"({math.ceil(100 * small.epsilon) / 100:.2f}" in text, "rounded up"
    assert "SIMULATION" not in as_text(statement(facts_of(large)), title="t")


def test_a_lipschitz_network_is_simulated_too() -> None:
    recipe = replace(RECIPE, model=ModelSection("lipschitz-dense"), lipschitz=LipschitzSection(tau=30.0))
    outcome = train(scaled_down(recipe, 4, SIZE), load("digits"), ledger_path=None, on_step=lambda run, point: None)
    assert isinstance(outcome.run.bound, LipschitzBound)
    assert outcome.run.noise_multiplier == pytest.approx(scaled_down(RECIPE, 4, SIZE).privacy.noise_multiplier)


def test_the_command_says_whose_epsilon_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "quick.toml").write_text('[privacy]\naccountant = "rdp"\n')
    options = ("--model", "linear", "--batch-size", 400, "--epochs", 2, "--simulate", 4)
    result = run_command(tmp_path / "quick.toml", *options, "--out", out)
    assert result.exit_code == 0, result.output
    assert "stands for a run 4 times as large; the epsilon above is its own" in result.output
    facts = facts_in(out)
    assert facts["recipe"]["training"]["simulates"] == 4
    assert facts["epsilon"] > 3.0
    assert facts["epsilon"] <= facts["recipe"]["privacy"]["epsilon"]
    assert "stands for a run" in (out / "report.html").read_text()


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="divide batch_size=480, got 7"):
        scaled_down(RECIPE, 7, SIZE)
    with pytest.raises(ValueError, match="simulates another one already, 4 times"):
        scaled_down(scaled_down(RECIPE, 4, SIZE), 2, SIZE)
    wrong = replace(
        RECIPE, privacy=replace(RECIPE.privacy, clipping="per-layer"), projection=ProjectionSection(4, 20.0)
    )
    with pytest.raises(ValueError, match=r"(?s)leave the projection out.*has several norms"):
        scaled_down(wrong, 4, SIZE)
    balls = replace(RECIPE, training=replace(RECIPE.training, batches="balls-in-bins"))
    with pytest.raises(ValueError, match="only Poisson batches"):
        scaled_down(balls, 4, SIZE)
