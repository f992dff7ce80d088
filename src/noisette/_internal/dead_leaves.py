"""The drawing of dead leaves, which are images of a random process."""

from __future__ import annotations

import numpy as np

from noisette._internal.leaves import column, radii, turned

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
