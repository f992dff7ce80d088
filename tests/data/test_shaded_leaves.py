"""Shaded leaves: the same for a seed, and closer to photographs than dead leaves."""

from __future__ import annotations

import numpy as np
import pytest

from noisette.data import built_in_images as module
from noisette.data import load
from noisette.data.built_in_images import dead_leaves, shaded_leaves


@pytest.fixture(scope="module")
def leaves() -> np.ndarray:
    return shaded_leaves(300, seed=3)


def test_the_same_seed_gives_the_same_images(leaves: np.ndarray) -> None:
    assert np.array_equal(shaded_leaves(300, seed=3), leaves)
    assert not np.array_equal(shaded_leaves(300, seed=4), leaves)
    assert leaves.dtype == np.float32
    assert leaves.min() >= 0
    assert leaves.max() <= 1


def test_colours_differ_less_than_brightness(leaves: np.ndarray) -> None:
    def share_of_brightness(images: np.ndarray) -> float:
        apart = images - images.mean((2, 3), keepdims=True)
        return 3 * apart.mean(1).var() / apart.var(axis=(0, 2, 3)).sum()

    assert share_of_brightness(leaves) > 0.75
    assert share_of_brightness(dead_leaves(300, seed=3).inputs) < 0.5


def test_leaves_are_shaded_and_their_edges_soft(leaves: np.ndarray) -> None:
    steps = np.abs(np.diff(leaves, axis=3))
    assert np.median(steps) > 1e-3  # inside a leaf, where those of dead leaves are 0
    assert (steps > 0.5).mean() < 0.5 * (np.abs(np.diff(dead_leaves(300, seed=3).inputs, axis=3)) > 0.5).mean()


def test_images_have_the_shape_that_was_asked_for() -> None:
    assert shaded_leaves(2, seed=0, side=28, channels=1).shape == (2, 1, 28, 28)


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="side=0"):
        shaded_leaves(1, seed=0, side=0)


def test_the_data_set_is_drawn_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRAIN", 30)
    monkeypatch.setattr(module, "TEST", 10)
    data = load("shaded-leaves")
    assert data.train.inputs.shape == (30, 3, 32, 32)
    assert data.test is not None
    assert len(data.test.inputs) == 10
    assert not np.array_equal(data.test.inputs, data.train.inputs[:10])
    assert np.array_equal(data.train.inputs, shaded_leaves(30, seed=0))
