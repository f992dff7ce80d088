"""Poisson batches of at most a fixed size, for shapes that are known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.errors import PrivacyError


@dataclass(frozen=True)
class TruncatedPoissonSampler:
    """Draws a Poisson batch; of one with more than ``largest_batch`` records, a random subset of that size.

    Guarantee: given the records of the Poisson batch, every subset of that size is equally likely, up to the
    probability of equal words among 64-bit words of the secret key's keystream, of which each record has one.

    Raises:
        PrivacyError: there are more records than the declared ``most_records``, for which the truncation is paid.
    """

    size: int
    sampling_rate: float
    largest_batch: int
    most_records: int
    key: SecretKey

    def __post_init__(self) -> None:
        if self.size > self.most_records:
            raise PrivacyError(
                f"the data set has {self.size} records, but truncated batches are paid for at most "
                f"most_records={self.most_records}: how often a batch is cut depends on it. Declare a larger number"
            )

    def indices(self, *, step: int) -> np.ndarray:
        """Indices of the records in this step's batch, ascending; possibly none, and at most ``largest_batch``."""
        drawn = PoissonSampler(self.size, self.sampling_rate, self.key).indices(step=step)
        if len(drawn) <= self.largest_batch:
            return drawn
        words = np.empty(len(drawn), dtype=np.uint64)
        self.key.fill(words, purpose="truncation", name="", step=step)
        return np.sort(drawn[np.argpartition(words, self.largest_batch)[: self.largest_batch]])
