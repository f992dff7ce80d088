"""What an attacker of one step sees, once for each canary and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Scores of canaries in units of the noise: N(0, 1) for those out of a batch, N(``shift``, 1) for those in it.

    Args:
        values: (steps, canaries).
        inside: whether the canary was in the step's batch, (steps, canaries).
        noise_multiplier: the claimed one; one record moves all of a step by at most one over it.
        shift: the documented mean of those in: one over the noise multiplier where canaries reach every bound.
    """

    values: np.ndarray
    inside: np.ndarray
    noise_multiplier: float
    shift: float

    @property
    def of_those_in(self) -> np.ndarray:
        """The scores of canaries that took part, in one row."""
        return self.values[self.inside]

    @property
    def of_those_out(self) -> np.ndarray:
        """The scores of canaries that did not, in one row."""
        return self.values[~self.inside]

    @property
    def residuals(self) -> np.ndarray:
        """What is left of the scores without the documented means: the noise, (steps, canaries)."""
        return self.values - self.shift * self.inside
