"""Batches of passes over the data: in each pass every record is in exactly one batch, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisette.core.batches import drawn_records
from noisette.core.noise import SecretKey


@dataclass(frozen=True)
class BallsInBinsSampler:
    """In each pass, every record chooses one of ``bins`` batches, uniformly and independently of all others.

    Args:
        size: number of records.
        bins: number of batches in a pass.
        key: the secret key.
        first_step: the step with which the first pass begins: that of a resumed run is the first of a new pass.

    Guarantee: a choice is independent across records and passes, from 64 bits of the secret key's keystream each.
    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".

    >>> sampler = BallsInBinsSampler(size=1000, bins=4, key=SecretKey())
    >>> sum(len(sampler.indices(step=step)) for step in range(4))
    1000
    """

    size: int
    bins: int
    key: SecretKey
    first_step: int = 0

    def indices(self, *, step: int) -> np.ndarray:
        """Indices of the records in this step's batch, ascending; possibly none."""
        passed, own = divmod(step - self.first_step, self.bins)
        start, end = (place * 2**64 // self.bins for place in (own, own + 1))
        # A record has one word in each pass; the words of a pass are in the stream of the pass's number.
        return drawn_records(self.size, self.key, purpose="bins", step=passed, low=start, width=end - start)
