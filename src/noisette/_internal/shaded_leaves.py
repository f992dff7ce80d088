"""The drawing of shaded leaves: dead leaves with the colours, the light and the soft edges of photographs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from noisette._internal.leaves import column, radii, turned

_LEAVES = 48
_AT_ONCE = 500
_SMALLEST, _LARGEST = 0.03, 0.6  # radii, in sides of the image
_CHROMA = 0.12  # the deviation of a channel of a leaf from its brightness
_SHADE = 0.15  # the deviation of a slope of the brightness, over one side of the image
_BLUR = np.float32(0.15)  # the weight of each neighbour of a pixel, first above and below it, then left and right


def drawn(images: int, seed: int, *, side: int, channels: int) -> np.ndarray:
    """Images (images, channels, side, side) in [0, 1], float32: see `noisette.data.shaded_leaves`.

    >>> drawn(3, seed=0, side=8, channels=1).shape
    (3, 1, 8, 8)
    """
    random = np.random.RandomState(seed)  # the same in every version of NumPy
    inputs = np.empty((images, channels, side, side), np.float32)
    for start in range(0, images, _AT_ONCE):
        _draw(inputs[start : start + _AT_ONCE], random)
    return _blurred(inputs).clip(0, 1)


def _draw(inputs: np.ndarray, random: np.random.RandomState) -> None:
    """Draw leaves of all sizes over a shaded ground."""
    count, channels, side, _ = inputs.shape
    colour = _colours(count, channels, random)
    y, x = np.mgrid[:side, :side].astype(np.float32) + 0.5
    inputs[:] = colour() + _shade(np.stack([x, y])[:, None] - side / 2, side, random, count)
    for _ in range(_LEAVES):
        radius = radii(_SMALLEST * side, _LARGEST * side, count, random)
        across, down = random.uniform(size=(2, count)) * side
        angle, flatness = random.uniform(size=count) * np.pi, random.uniform(0.15, 1.0, size=count)
        disc = random.uniform(size=count) < 0.6  # the others are rectangles
        along, apart = turned(x, y, across, down, -angle)
        u, v = along / column(radius), apart / column(radius * flatness)
        inside = np.where(column(disc), u**2 + v**2 < 1, (np.abs(u) < 1) & (np.abs(v) < 1))
        shaded = colour() + _shade(2 * np.stack([along, apart]), side, random, count)
        np.copyto(inputs, shaded.astype(np.float32), where=inside[:, None])


def _colours(count: int, channels: int, random: np.random.RandomState) -> Callable[[], np.ndarray]:
    """Draws a colour for a leaf of each image: a brightness, and chroma that is partly that of the whole image."""
    tint = _CHROMA * random.normal(size=(count, channels, 1, 1))
    contrast = random.uniform(0.1, 0.5, size=(count, 1, 1, 1))
    middle = random.uniform(0.25, 0.75, size=(count, 1, 1, 1))

    def colour() -> np.ndarray:
        brightness = middle + contrast * random.uniform(-1, 1, size=(count, 1, 1, 1))
        return brightness + tint + _CHROMA * random.normal(size=(count, channels, 1, 1))

    return colour


def _shade(places: np.ndarray, side: int, random: np.random.RandomState, count: int) -> np.ndarray:
    """A brightness that changes evenly along both directions of ``places`` (2, images or 1, side, side)."""
    slopes = _SHADE / side * random.normal(size=(2, count, 1, 1))
    return (slopes * places).sum(0)[:, None]


def _blurred(inputs: np.ndarray) -> np.ndarray:
    for axis in (2, 3):
        border = [(1, 1) if axis == k else (0, 0) for k in range(4)]
        padded = np.pad(inputs, border, mode="edge")
        before, here, after = (np.take(padded, np.arange(k, k + inputs.shape[axis]), axis) for k in range(3))
        inputs = _BLUR * before + (1 - 2 * _BLUR) * here + _BLUR * after
    return inputs
