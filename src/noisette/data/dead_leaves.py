"""Dead leaves: images of a random process that anyone can draw again, so that they are public and nobody's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from noisette import errors as checks
from noisette.data.dataset import DataSet, Split
from noisette.data.leaves import KINDS, SIZES, drawn

TRAIN, TEST = 10_000, 1_000
CLASSES = tuple(f"{size} {kind}" for size in SIZES for kind in KINDS)


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
    return Split(*drawn(images, seed, side=side, channels=channels))


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
