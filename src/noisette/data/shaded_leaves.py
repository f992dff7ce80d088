"""Shaded leaves: images of a random process whose colours and light are closer to those of photographs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from noisette import errors as checks
from noisette.data.dataset import DataSet, Split
from noisette.data.leaves import drawn_shaded as drawn

TRAIN, TEST = 10_000, 1_000


def shaded_leaves(images: int, seed: int, *, side: int = 32, channels: int = 3) -> np.ndarray:
    """Images (images, channels, side, side) in [0, 1], float32.

    Leaves of all sizes fall one after another and hide what is below, as in :func:`noisette.data.dead_leaves`. They are
    ellipses and rectangles. What differs is what makes photographs easy to compress: the channels of a colour differ
    little, and alike all over an image; the brightness of a leaf changes evenly along it; edges are soft. The same
    arguments give the same images.

    Args:
        images: how many.
        seed: of the generator, which is NumPy's and public.
        side: height and width.
        channels: 1 for grey, 3 for colours.

    Guarantee: the images depend on these numbers alone, so there is no record to protect.
    Source: Lee, Mumford & Huang 2001, "Occlusion models for natural images"; the colours and shades are noisette's own.

    Raises:
        ValueError: a number is below one.

    >>> shaded_leaves(3, seed=0, side=8, channels=1).shape
    (3, 1, 8, 8)
    """
    checks.count(images=images, side=side, channels=channels)
    return drawn(images, seed, side=side, channels=channels)


def _split(images: int, seed: int, side: int, channels: int) -> Split:
    return Split(shaded_leaves(images, seed, side=side, channels=channels), np.zeros(images, np.int64))


def _data_set(name: str, side: int, channels: int, data_dir: Path | None) -> DataSet:
    return DataSet(
        name,
        _split(TRAIN, 0, side, channels),
        _split(TEST, 1, side, channels),
        classes=1,
        declared_size=TRAIN,
        note="images of a random process: no record of anyone, and all of one class",
    )


coloured = partial(_data_set, "shaded-leaves", 32, 3)
