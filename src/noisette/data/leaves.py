"""Synthetic images of dead leaves, drawn from a fixed seed and therefore public."""

from __future__ import annotations

from collections.abc import Callable

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


_LEAVES = 48
_AT_ONCE = 500
KINDS = ("discs", "rectangles", "lying bars", "rising bars", "standing bars", "falling bars")
SIZES = {"small": (0.03, 0.15), "large": (0.12, 0.5)}  # the smallest and largest radius, in sides of the image
_BAR = 0.2  # the width of a bar as a share of its length


def drawn(images: int, seed: int, *, side: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (images, channels, side, side) in [0, 1], float32, and their classes: see `noisette.data.dead_leaves`.

    >>> inputs, targets = drawn(3, seed=0, side=8, channels=1)
    >>> inputs.shape, targets.shape
    ((3, 1, 8, 8), (3,))
    """
    random = np.random.RandomState(seed)  # the same in every version of NumPy
    targets = random.randint(len(SIZES) * len(KINDS), size=images)
    inputs = np.empty((images, channels, side, side), np.float32)
    for start in range(0, images, _AT_ONCE):
        _draw(inputs[start : start + _AT_ONCE], targets[start : start + _AT_ONCE], random)
    return inputs, targets.astype(np.int64)


def _draw(inputs: np.ndarray, targets: np.ndarray, random: np.random.RandomState) -> None:
    """Draw leaves of these classes over a ground of one colour."""
    count, channels, side, _ = inputs.shape
    inputs[:] = random.uniform(size=(count, channels, 1, 1))
    kinds = targets % len(KINDS)
    low, high = np.array(list(SIZES.values()))[targets // len(KINDS)].T * side
    y, x = np.mgrid[:side, :side].astype(np.float32) + 0.5
    for _ in range(_LEAVES):
        radius = radii(low, high, count, random)
        across, down = random.uniform(size=(2, count)) * side
        angle = np.where(kinds < 2, random.uniform(size=count) * np.pi, (kinds - 2) * np.pi / 4)
        flatness = np.where(kinds == 1, random.uniform(0.3, 1.0, size=count), np.where(kinds > 1, _BAR, 1.0))
        colour = random.uniform(size=(count, channels, 1, 1))
        along, apart = turned(x, y, across, down, angle)
        along, apart = along / column(radius), apart / column(radius * flatness)
        disc = along**2 + apart**2 < 1
        inside = np.where(column(kinds == 0), disc, (np.abs(along) < 1) & (np.abs(apart) < 1))
        np.copyto(inputs, colour.astype(np.float32), where=inside[:, None])


_SHADED_LEAVES = 48
_SHADED_AT_ONCE = 500
_SMALLEST, _LARGEST = 0.03, 0.6  # radii, in sides of the image
_CHROMA = 0.12  # the deviation of a channel of a leaf from its brightness
_SHADE = 0.15  # the deviation of a slope of the brightness, over one side of the image
_BLUR = np.float32(0.15)  # the weight of each neighbour of a pixel, first above and below it, then left and right


def drawn_shaded(images: int, seed: int, *, side: int, channels: int) -> np.ndarray:
    """Images (images, channels, side, side) in [0, 1], float32: see `noisette.data.shaded_leaves`.

    >>> drawn_shaded(3, seed=0, side=8, channels=1).shape
    (3, 1, 8, 8)
    """
    random = np.random.RandomState(seed)  # the same in every version of NumPy
    inputs = np.empty((images, channels, side, side), np.float32)
    for start in range(0, images, _SHADED_AT_ONCE):
        _draw_shaded(inputs[start : start + _SHADED_AT_ONCE], random)
    return _blurred(inputs).clip(0, 1)


def _draw_shaded(inputs: np.ndarray, random: np.random.RandomState) -> None:
    """Draw leaves of all sizes over a shaded ground."""
    count, channels, side, _ = inputs.shape
    colour = _colours(count, channels, random)
    y, x = np.mgrid[:side, :side].astype(np.float32) + 0.5
    inputs[:] = colour() + _shade(np.stack([x, y])[:, None] - side / 2, side, random, count)
    for _ in range(_SHADED_LEAVES):
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
