"""Scales pixels to network inputs by their known range 0..255; nothing is estimated from the images."""

from __future__ import annotations

import numpy as np


def unit(pixels: np.ndarray) -> np.ndarray:
    """Float32 in [0, 1], (n, c, h, w), from bytes shaped (n, h, w) or (n, h, w, c).

    Inputs are not standardized: even the published means and deviations were computed from training images.

    >>> unit(np.full((2, 4, 5, 3), 255, np.uint8)).shape
    (2, 3, 4, 5)
    """
    channels_first = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return np.divide(channels_first, np.float32(255), dtype=np.float32, order="C")
