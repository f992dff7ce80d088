"""Images of a random process: the same for a seed, and leaves of the kind that their class says."""

from __future__ import annotations

import numpy as np
import pytest

from noisette.data.built_in_images import CLASSES, dead_leaves


def edges(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """For each image the share of pixels that differ from the one so far below and to the right."""
    side = images.shape[-1]
    here = images[:, :, 1 : side - 1, 1 : side - 1]
    there = images[:, :, 1 + down : side - 1 + down, 1 + right : side - 1 + right]
    return (here != there).any(1).mean((1, 2))


@pytest.fixture(scope="module")
def leaves() -> tuple[np.ndarray, np.ndarray]:
    split = dead_leaves(400, seed=3)
    return split.inputs, split.targets


def test_the_same_seed_gives_the_same_images(leaves: tuple[np.ndarray, np.ndarray]) -> None:
    again, other = dead_leaves(400, seed=3), dead_leaves(400, seed=4)
    assert np.array_equal(again.inputs, leaves[0])
    assert np.array_equal(again.targets, leaves[1])
    assert not np.array_equal(other.inputs, leaves[0])
    assert again.inputs.dtype == np.float32
    assert again.inputs.min() >= 0
    assert again.inputs.max() <= 1


def test_every_class_is_there_about_as_often(leaves: tuple[np.ndarray, np.ndarray]) -> None:
    counts = np.bincount(leaves[1], minlength=len(CLASSES))
    assert len(counts) == len(CLASSES) == 12
    assert counts.min() > 15


@pytest.mark.parametrize(
    ("kind", "along"), [("lying", (0, 1)), ("standing", (1, 0)), ("rising", (-1, 1)), ("falling", (1, 1))]
)
def test_bars_lie_in_the_direction_of_their_class(
    leaves: tuple[np.ndarray, np.ndarray], kind: str, along: tuple[int, int]
) -> None:
    chosen = leaves[0][np.isin(leaves[1], [k for k, name in enumerate(CLASSES) if kind in name and "large" in name])]
    down, right = along
    same, across = edges(chosen, down, right).mean(), edges(chosen, right, -down).mean()
    assert same < 0.5 * across


def test_small_leaves_leave_more_of_the_ground(leaves: tuple[np.ndarray, np.ndarray]) -> None:
    def largest_area(image: np.ndarray) -> int:
        return np.unique(image.reshape(3, -1), axis=1, return_counts=True)[1].max()

    small = np.isin(leaves[1], [k for k, name in enumerate(CLASSES) if name.startswith("small")])
    areas = np.array([largest_area(image) for image in leaves[0]])
    assert areas[small].mean() > 2 * areas[~small].mean()


def test_images_have_the_shape_that_was_asked_for() -> None:
    assert dead_leaves(2, seed=0, side=28, channels=1).inputs.shape == (2, 1, 28, 28)


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="images=0"):
        dead_leaves(0, seed=0)
