"""Dead leaves: images of a random process that anyone can draw again, so that they are public and nobody's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from noisette._internal import checks
from noisette.data.dataset import DataSet, Split

TRAIN, TEST = 10_000, 1_000
_LEAVES = 48
_AT_ONCE = 500
_NAMED = ("discs", "rectangles", "lying bars", "rising bars", "standing bars", "falling bars")
_SIZES = {"small": (0.03, 0.15), "large": (0.12, 0.5)}  # the smallest and largest radius, in sides of the image
CLASSES = tuple(f"{size} {name}" for size in _SIZES for name in _NAMED)
_BAR = 0.2  # the width of a bar as a share of its length


def dead_leaves(images: int, seed: int, *, side: int = 32, channels: int = 3) -> Split:
    """Images (images, channels, side, side) in [0, 1], float32, and the classes of what is in them.

    Leaves fall one after another and hide what is below. Each has a uniform colour, a uniform place and a radius with
    a density in proportion to r^-3 within the bounds of its class. A class is a size and a kind of leaves: discs,
    rectangles in all directions, or bars in one of four directions. The same arguments give the same images.

    Args:
        images: how many.
        seed: of the generator, which is NumPy's and public.
        side: height and width.
        channels: 1 for grey, 3 for colours.

    Guarantee: the images depend on these numbers alone, so there is no record to protect.
    Source: Lee, Mumford & Huang 2001, "Occlusion models for natural images"; for learning features Baradad et al. 2021,
    "Learning to see by looking at noise"; before private training Tang, Panda, Sehwag & Mittal 2023, "Differentially
    private image classification by learning priors from random processes".

    Raises:
        ValueError: a number is below one.

    >>> split = dead_leaves(3, seed=0, side=8, channels=1)
    >>> split.inputs.shape, split.targets.shape
    ((3, 1, 8, 8), (3,))
    """
    checks.count(images=images, side=side, channels=channels)
    random = np.random.RandomState(seed)  # the same in every version of NumPy
    targets = random.randint(len(CLASSES), size=images)
    inputs = np.empty((images, channels, side, side), np.float32)
    for start in range(0, images, _AT_ONCE):
        _draw(inputs[start : start + _AT_ONCE], targets[start : start + _AT_ONCE], random)
    return Split(inputs, targets.astype(np.int64))


def _draw(inputs: np.ndarray, targets: np.ndarray, random: np.random.RandomState) -> None:
    """Draw leaves of these classes over a ground of one colour."""
    count, channels, side, _ = inputs.shape
    inputs[:] = random.uniform(size=(count, channels, 1, 1))
    kinds = targets % len(_NAMED)
    low, high = np.array(list(_SIZES.values()))[targets // len(_NAMED)].T * side
    y, x = np.mgrid[:side, :side].astype(np.float32) + 0.5
    for _ in range(_LEAVES):
        # By the inverse of the distribution function of r^-3 between the bounds.
        radius = (low**-2 - random.uniform(size=count) * (low**-2 - high**-2)) ** -0.5
        across, down = random.uniform(size=(2, count)) * side
        angle = np.where(kinds < 2, random.uniform(size=count) * np.pi, (kinds - 2) * np.pi / 4)
        flatness = np.where(kinds == 1, random.uniform(0.3, 1.0, size=count), np.where(kinds > 1, _BAR, 1.0))
        colour = random.uniform(size=(count, channels, 1, 1))
        along, apart = _turned(x, y, across, down, angle)
        along, apart = along / _column(radius), apart / _column(radius * flatness)
        disc = along**2 + apart**2 < 1
        inside = np.where(_column(kinds == 0), disc, (np.abs(along) < 1) & (np.abs(apart) < 1))
        np.copyto(inputs, colour.astype(np.float32), where=inside[:, None])


def _turned(
    x: np.ndarray, y: np.ndarray, across: np.ndarray, down: np.ndarray, angle: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels' distances from each image's place, along its direction and at right angles to it."""
    right, below = x - _column(across), y - _column(down)
    cos, sin = _column(np.cos(angle)), _column(np.sin(angle))
    return right * cos - below * sin, right * sin + below * cos


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32 if values.dtype != bool else bool)[:, None, None]


def _data_set(name: str, side: int, channels: int, data_dir: Path | None) -> DataSet:
    return DataSet(
        name,
        dead_leaves(TRAIN, 0, side=side, channels=channels),
        dead_leaves(TEST, 1, side=side, channels=channels),
        classes=len(CLASSES),
        declared_size=TRAIN,
        note="images of a random process: no record of anyone",
    )


coloured = partial(_data_set, "dead-leaves", 32, 3)
grey = partial(_data_set, "dead-leaves-grey", 28, 1)
