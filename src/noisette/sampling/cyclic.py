"""Cyclic Poisson batches: the steps take groups of records in turn, so that a record rests between its batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey

_CHUNK = 2**20  # records whose group is drawn at once


@dataclass(frozen=True)
class CyclicPoissonSampler:
    """Step t draws a Poisson batch of the records of group t modulo ``bands``, counted from the first step.

    Each record's group is drawn once, uniformly and independently of all others, so a record that is added or removed
    changes no other one's group. Given its group, a record is in a batch of every ``bands``-th step with probability
    ``rate``, independently of all other records and steps.

    Args:
        size: number of records.
        rate: probability that a record of a step's group is in its batch.
        bands: number of groups.
        key: the secret key.
        first_step: the step that takes the first group: that of a resumed run, which draws new groups.

    Guarantee: a record is in at most one of ``bands`` consecutive batches.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2 (sampling); groups drawn
    at random instead of groups of equal sizes, because those would depend on the number of records.

    >>> sampler = CyclicPoissonSampler(size=1000, rate=1.0, bands=4, key=SecretKey())
    >>> sum(len(sampler.indices(step=step)) for step in range(4))
    1000
    """

    size: int
    rate: float
    bands: int
    key: SecretKey
    first_step: int = 0
    _groups: np.ndarray = field(init=False, repr=False, compare=False)  # of each record

    def __post_init__(self) -> None:
        object.__setattr__(self, "_groups", _groups(self.size, self.bands, self.key))

    def indices(self, *, step: int) -> np.ndarray:
        """Indices of the records in this step's batch, ascending; possibly none."""
        # Drawn among all records and then sorted out, so that each record's draws are its own.
        drawn = PoissonSampler(self.size, self.rate, self.key).indices(step=step)
        return drawn[self._groups[drawn] == (step - self.first_step) % self.bands]


def _groups(size: int, bands: int, key: SecretKey) -> np.ndarray:
    """The group of each record: the interval in which its word of 64 bits lies."""
    ends = np.array([end * 2**64 // bands for end in range(1, bands)], dtype=np.uint64)  # the first word of the next
    found = np.empty(size, dtype=np.min_scalar_type(bands - 1))
    for start in range(0, size, _CHUNK):
        words = np.empty(min(_CHUNK, size - start), dtype=np.uint64)
        key.fill(words, purpose="groups", name="", step=0, start=start)
        found[start : start + len(words)] = np.searchsorted(ends, words, side="right")
    return found
