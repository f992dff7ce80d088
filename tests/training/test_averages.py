"""Averages of weights and the learning rate of each step, against formulas."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from noisette.data import load
from noisette.training.build import WeightAverage
from noisette.training.defaults import NETWORK_REACH
from noisette.training.loop import learning_rate, resume, train, with_rate
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection


def kept(settings: TrainingSection, weights: list[float]) -> list[float]:
    """The average after each step with these weights."""
    model = nn.Linear(1, 1, bias=False)
    average, values = WeightAverage(model, settings), []
    for step, weight in enumerate(weights, 1):
        nn.init.constant_(model.weight, weight)
        average.update(model, spent=step, steps=len(weights))
        values.append(next(average.module.parameters()).item())
    return values


def test_the_exponential_average_forgets_the_first_weights():
    weights, expected = [float(n * n) for n in range(1, 41)], []
    value = weights[0]
    for t, weight in enumerate(weights, 1):
        decay = min(0.8, t / (9 + t)) if t > 1 else 0.0
        value = decay * value + (1 - decay) * weight
        expected.append(value)
    assert kept(TrainingSection(averaging=0.8), weights) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("share", "steps", "last"), [(0.25, 8, 2), (0.3, 7, 3), (0.999, 5, 5), (0.01, 5, 1)])
def test_the_last_weights_are_averaged_evenly(share, steps, last):
    weights = [float(n * n) for n in range(1, steps + 1)]
    values = kept(TrainingSection(average_last=share), weights)
    assert values[: steps - last] == weights[: steps - last]
    assert values[-1] == pytest.approx(sum(weights[-last:]) / last)


def test_an_average_of_the_last_weights_is_resumed(tmp_path):
    privacy = PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp")
    training = TrainingSection(epochs=1, batch_size=200, lr=4.0, average_last=0.9)
    recipe = Recipe(DataSection("digits"), ModelSection("linear"), privacy, training)
    weights, rates = [], []

    def watch(run, point):
        rates.append(run.optimizer.param_groups[0]["lr"])
        weights.append(next(run.bound.model.parameters()).detach().clone())
        if len(weights) == 3:
            raise SystemExit

    with pytest.raises(SystemExit):
        train(recipe, load("digits"), ledger_path=tmp_path / "l", on_step=watch, checkpoint=tmp_path / "c")
    outcome = resume(recipe, load("digits"), on_step=watch, checkpoint=tmp_path / "c")
    assert outcome.run.steps == len(weights) == 7
    assert rates == pytest.approx([2 * (1 + math.cos(math.pi * n / 7)) for n in range(1, 8)]), "the next step's"
    torch.testing.assert_close(next(outcome.model.parameters()).detach(), torch.stack(weights).mean(0))


def test_the_learning_rate_falls_or_moves_on_a_line():
    def rates(**settings: float) -> list[float]:
        of = TrainingSection(lr=2.0, **settings)  # type: ignore[arg-type]
        return [learning_rate(of, spent=n, steps=10, sampling_rate=0.1) for n in range(10)]

    cosine = [1 + math.cos(math.pi * n / 10) for n in range(10)]
    assert (rates(), rates(cosine=False)) == (pytest.approx(cosine), [2.0] * 10)
    assert rates(lr_end=1.0, lr_epochs=0.5) == pytest.approx([2.0, 1.8, 1.6, 1.4, 1.2, *[1.0] * 5])


RATES: list[Any] = [({}, 2.0), ({"cosine": False}, 1.0), ({"momentum": 0.5}, 1.0), ({"lr": 0.25}, 0.0)]


@pytest.mark.parametrize(("settings", "factor"), RATES)
def test_a_recipe_without_a_rate_gets_that_of_the_rule(settings, factor):
    of = Recipe(training=TrainingSection(**{"batch_size": 360, "lr": None} | settings))
    optimizer = torch.optim.SGD(nn.Linear(99, 10).parameters())
    run: Any = SimpleNamespace(optimizer=optimizer, noise_multiplier=2.0, steps=50)
    expected = factor * NETWORK_REACH / math.sqrt(50 * (1 + 1000 * (2.0 / 360) ** 2))
    assert with_rate(of, run).training.lr == pytest.approx(expected or 0.25)
    for norm, unit in ((0.5, 0.5), (3.0, 2.0)):  # of a table, whose larger norm has the rate for norm 2
        table = replace(of, model=ModelSection("table"), privacy=PrivacySection(max_grad_norm=norm))
        assert with_rate(table, run).training.lr == pytest.approx(expected / unit or 0.25)
