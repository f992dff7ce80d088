"""Weights of classes: what a loss becomes, against a loop, and what they do for a rare class."""

import math

import numpy as np
import pytest
import torch

from noisette.data import DataSet, Split
from noisette.training.build import TrainingSetup
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection

RECIPE = Recipe(
    DataSection("own.npz", classes=("no", "yes"), size=600),
    ModelSection("linear"),
    PrivacySection(epsilon=8.0, delta=1e-4),
    TrainingSection(epochs=20, batch_size=100, lr=4.0, class_weights={"yes": 9.0, "no": 1.0}, compile="no"),
)


def rare(seed: int) -> Split:
    """One record in ten is of the second class, and is not told apart well."""
    random = np.random.default_rng(seed)
    targets = (random.random(600) < 0.1).astype(np.int64)
    return Split((random.normal(size=(600, 3)) + 0.7 * targets[:, None]).astype(np.float32), targets)


DATA = DataSet("own", rare(0), rare(1), 2, 600)


def test_the_loss_of_a_class_has_its_weight_over_the_largest():
    loss = TrainingSetup(RECIPE, DATA).loss
    scores, targets = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 0, 1])
    for row, target, value in zip(scores.tolist(), targets.tolist(), loss(scores, targets).tolist(), strict=True):
        by_hand = math.log(sum(map(math.exp, row))) - row[target]
        assert value == pytest.approx(by_hand * (1.0 if target else 1 / 9), rel=1e-5)
