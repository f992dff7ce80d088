"""DP-AdamBC against its formula in NumPy, and the deviations of the noise that a run tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import noisette
from cut_runs import cut_short, pass_by
from noisette import AdamBC, AdaptiveClip, FlatClipping, GroupwiseClipping, PerExampleClip
from noisette.data import load
from noisette.training.loop import resume
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection


def by_formula(
    start: np.ndarray, grads: list[np.ndarray], deviations: list[float], lr: float, floor: float
) -> np.ndarray:
    """The weights after these gradients, each mean written as its whole sum; betas are 0.8 and 0.95."""
    weights = start.copy()
    for t in range(1, len(grads) + 1):
        first = np.array([0.8 ** (t - k) for k in range(1, t + 1)])
        second = np.array([0.95 ** (t - k) for k in range(1, t + 1)])
        mean = np.tensordot(first / first.sum(), np.stack(grads[:t]), 1)
        square = np.tensordot(second / second.sum(), np.stack(grads[:t]) ** 2, 1)
        noise = np.dot(second / second.sum(), np.square(deviations[:t]))
        weights -= lr * mean / np.sqrt(np.maximum(square - noise, floor * noise))
    return weights


def test_steps_are_those_of_the_formula_with_other_noise_on_each_parameter_and_step() -> None:
    random = np.random.default_rng(0)
    parameters = [nn.Parameter(torch.as_tensor(random.normal(size=shape))) for shape in ((3, 2), (4,))]
    optimizer = AdamBC(parameters, lr=0.1, betas=(0.8, 0.95), floor=1.5)
    starts = [p.detach().numpy().copy() for p in parameters]
    grads = [[random.normal(size=p.shape) for p in parameters] for _ in range(6)]
    deviations = random.uniform(0.2, 0.9, size=(6, 2))
    for step, deviation in zip(grads, deviations, strict=True):
        for p, grad in zip(parameters, step, strict=True):
            p.grad = torch.as_tensor(grad)
        optimizer.take_deviations({id(p): float(d) for p, d in zip(parameters, deviation, strict=True)})
        optimizer.step()
    for k, p in enumerate(parameters):
        right = by_formula(starts[k], [step[k] for step in grads], list(deviations[:, k]), 0.1, 1.5)
        np.testing.assert_allclose(p.detach().numpy(), right, rtol=1e-10)


class Recorder(AdamBC):
    """Keeps the gradients and the deviations that it was told."""

    def step(self, closure: None = None) -> None:
        self.seen = [(p.grad.clone(), self._deviations[id(p)]) for group in self.param_groups for p in group["params"]]
        super().step(closure)


@pytest.mark.parametrize(
    ("clipping", "sampling"),
    [
        (FlatClipping(1.0), noisette.Poisson()),
        (GroupwiseClipping({"a": 1.0, "b": 8.0}), noisette.Poisson()),
        (AdaptiveClip(1.0, learning_rate=0.5), noisette.Poisson()),
        (FlatClipping(1.0), noisette.CyclicPoisson(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_tells_the_deviation_of_each_gradient(clipping: Any, sampling: Any) -> None:
    """Gradients are zero, so what is released is noise, whose deviation is measured on many elements."""
    model = nn.ModuleDict({"a": nn.Linear(100, 100, bias=False), "b": nn.Linear(100, 100, bias=False)})
    optimizer = Recorder(model.parameters(), lr=1e-3)
    run = noisette.privatize(
        PerExampleClip(model, clipping=clipping),
        optimizer,
        TensorDataset(torch.zeros(40, 100)),
        expected_batch_size=10,
        public_size=40,
        steps=12,
        noise_multiplier=1.0,
        delta=1e-3,
        sampling=sampling,
    )

    def loss(model: nn.ModuleDict, x: Tensor) -> Tensor:
        return (model["a"](x) + model["b"](x)).sum()

    told: list[float] = []
    with run:
        for batch in run.batches():
            for (x,) in batch.microbatches(20):
                run.accumulate(loss, x)
            optimizer.step()
            for grad, deviation in optimizer.seen:
                assert grad.std().item() == pytest.approx(deviation, rel=0.03)
            told.append(deviation)
            optimizer.zero_grad()
    if isinstance(sampling, noisette.CyclicPoisson):  # of correlated noise it is that of what is added
        assert told == sorted(told), "it grows with the steps"
        assert told[-1] > 1.1 * told[0] > 0.11  # of independent noise it is 0.1


def recipe(**changes: object) -> Recipe:
    training = {"epochs": 1, "batch_size": 200, "optimizer": "adam-bc", "lr": 0.003} | changes
    privacy = PrivacySection(epsilon=8.0, delta=1e-4, accountant="rdp")
    return Recipe(DataSection("digits"), ModelSection("linear"), privacy, TrainingSection(**training))  # type: ignore[arg-type]


def test_a_recipe_with_it_learns_and_is_resumed(tmp_path: Path) -> None:
    of, data = recipe(epochs=4, lr=0.01, floor=0.02), load("digits")
    outcome = resume(of, data, on_step=pass_by, checkpoint=cut_short(of, data, tmp_path, step=3))
    state = next(iter(outcome.run.optimizer.state.values()))
    assert state["step"] == outcome.run.steps == 29
    assert state["noise"] > 0
    assert outcome.test is not None
    assert outcome.test.accuracy > 0.6


def test_it_steps_in_a_private_run_only() -> None:
    layer = nn.Linear(2, 1)
    optimizer = AdamBC(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="give this optimizer itself"):
        optimizer.step()
    with pytest.raises(ValueError, match="floor=0"):
        AdamBC(layer.parameters(), floor=0.0)
