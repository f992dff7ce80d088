"""The real files that NOISETTE_DATA has: shapes, means and the known number of examples of each class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import load

Real = Callable[[str], Path]

# Per class, as published or counted independently of these readers.
TRAIN = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
    "kmnist": [690, 690, 695, 702, 757, 708, 688, 708, 672, 701],
    "cifar10": [5000] * 10,
}
TEST = {
    "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    "fashion-mnist": [1000] * 10,
    "kmnist": [1000] * 10,
    "cifar10": [1000] * 10,
}
MEAN = {"mnist": [0.1307], "fashion-mnist": [0.2860], "cifar10": [0.4914, 0.4822, 0.4465]}  # per channel, published
SHAPE = {"cifar10": (3, 32, 32)}


@pytest.mark.parametrize("name", TRAIN)
def test_counts_shapes_and_means(name: str, real: Real) -> None:
    folder = real(name)
    found = load(name, data_dir=folder)
    assert found.test is not None
    assert np.bincount(found.train.targets).tolist() == TRAIN[name]
    assert np.bincount(found.test.targets).tolist() == TEST[name]
    assert found.train.inputs.shape == (sum(TRAIN[name]), *SHAPE.get(name, (1, 28, 28)))
    assert found.declared_size == sum(TRAIN[name])
    assert found.train.inputs.min() == 0
    assert found.train.inputs.max() == 1
    if name in MEAN:
        np.testing.assert_allclose(found.train.inputs.mean((0, 2, 3), dtype=np.float64), MEAN[name], atol=1.5e-4)
    assert (found.note != "") == (name in ("kmnist", "cifar10"))
