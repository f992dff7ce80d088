"""The number that a regression predicts: its declared bounds and its unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from noisette.data.errors import refuse
from noisette.data.values import scaled, unscaled


@dataclass(frozen=True)
class Target:
    """A number between declared bounds, in a unit; numbers outside count as the nearer bound.

    A model predicts it on the scale of -1 to 1.

    Raises:
        DataError: the bounds are not finite, or not in ascending order.

    >>> rent = Target(0, 2000, "EUR")
    >>> rent.scaled(np.array([500.0, 9000.0])).tolist()
    [-0.5, 1.0]
    >>> rent.unscaled(np.array([-0.5, 1.5])).tolist()
    [500.0, 2000.0]
    """

    low: float
    high: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            refuse("target", [f"expected finite low < high, got low = {self.low}, high = {self.high}"])

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Values in the unit of the target on the scale of the model, float32; they are clipped to the bounds."""
        return scaled(values, low=self.low, high=self.high).astype(np.float32)

    def unscaled(self, predictions: np.ndarray) -> np.ndarray:
        """Predictions in the unit of the target, float64; they are clipped to the bounds."""
        return unscaled(predictions.astype(np.float64), low=self.low, high=self.high)
