"""The places and sizes of the leaves in images of random processes."""

from __future__ import annotations

import numpy as np


def radii(low: np.ndarray | float, high: np.ndarray | float, count: int, random: np.random.RandomState) -> np.ndarray:
    """Radii, (count,), with a density in proportion to r^-3 between the bounds.

    They are values of the inverse distribution function.
    """
    return (low**-2 - random.uniform(size=count) * (low**-2 - high**-2)) ** -0.5


def turned(
    x: np.ndarray, y: np.ndarray, across: np.ndarray, down: np.ndarray, angle: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels' distances from each image's place, along its direction and at right angles to it."""
    right, below = x - column(across), y - column(down)
    cos, sin = column(np.cos(angle)), column(np.sin(angle))
    return right * cos - below * sin, right * sin + below * cos


def column(values: np.ndarray) -> np.ndarray:
    """One value for each image, (images,), beside all its pixels: (images, 1, 1)."""
    return values.astype(np.float32 if values.dtype != bool else bool)[:, None, None]
