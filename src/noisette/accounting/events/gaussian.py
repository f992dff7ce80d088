"""Sums with Gaussian noise, and how the records of each sum are chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

from noisette.accounting.events.event import Event, Neighbouring
from noisette.errors import all_of, count, positive, probability

Parts: TypeAlias = tuple[tuple[str, float], ...]
"""The parts of one release, each with its share of the budget. Shares add up to 1; without parts: a gradient."""


@dataclass(frozen=True, slots=True, repr=False)
class Gaussian(Event):
    """One release: a sum over all records, plus Gaussian noise.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one record. Above 0.
        parts: the parts of the release, where it is not a gradient alone.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> Gaussian(noise_multiplier=7.0, parts=(("principal components", 1.0),))
    Gaussian(noise_multiplier=7.0, parts=(('principal components', 1.0),))
    """

    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "Gaussian"
    sampling: ClassVar[str] = "none (every record)"
    sampling_rate: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class PoissonGaussian(Event):
    """One release: a sum over a Poisson batch, plus Gaussian noise.

    Args:
        sampling_rate: probability, in (0, 1], with which each example enters the batch, independently of all others.
            1 is the whole data set.
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one example. Above 0.
        parts: the parts of the release, each with its share of the budget, where it is not a gradient alone. Shares
            add up to 1. They are recorded and change no privacy cost: the parts are one Gaussian mechanism.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "Poisson Gaussian"
    sampling: ClassVar[str] = "Poisson"

    def __post_init__(self) -> None:
        probability(sampling_rate=self.sampling_rate)
        positive(noise_multiplier=self.noise_multiplier)
        _check_parts(self.parts)

    @classmethod
    def joint(cls, sampling_rate: float, noise_multipliers: Mapping[str, float]) -> Self:
        """Several releases on one batch, each with its own noise multiplier: together one Gaussian mechanism.

        In units of the noise the sensitivity of part i is 1 / sigma_i, and that of all parts together
        1 / sigma_eff = sqrt(sum of 1 / sigma_i^2). Composing the parts as separate events would treat the batch as if
        it were sampled anew for each part.

        Raises:
            ValueError: there is no part, or a value is outside its range.

        >>> round(PoissonGaussian.joint(0.01, {"hidden layer": 4.0, "top layer": 4.0}).noise_multiplier, 4)
        2.8284
        """
        if not noise_multipliers:
            raise ValueError("expected the noise multiplier of at least one part, got none")
        positive(**{f"noise_multiplier of {name}": noise for name, noise in noise_multipliers.items()})
        inverse = math.fsum(noise**-2 for noise in noise_multipliers.values())
        shares = tuple((name, noise**-2 / inverse) for name, noise in noise_multipliers.items())
        return cls(sampling_rate, inverse**-0.5, shares)

    @classmethod
    def quantile_query(cls, sampling_rate: float, count_deviation: float) -> Self:
        """A noisy count of the examples on one side of a threshold, from which quantiles are estimated.

        Each example adds plus or minus one half to the count, so its sensitivity is 1/2.

        Args:
            sampling_rate: probability in (0, 1] that an example is in the batch.
            count_deviation: standard deviation of the noise on the count, in examples.

        Source: Andrew et al. 2021, algorithm 1.

        >>> PoissonGaussian.quantile_query(0.01, count_deviation=10.0)
        PoissonGaussian(sampling_rate=0.01, noise_multiplier=20.0, parts=(('count', 1.0),))
        """
        positive(count_deviation=count_deviation)
        return cls(sampling_rate, 2 * count_deviation, (("count", 1.0),))


Sampled: TypeAlias = Gaussian | PoissonGaussian
"""A release over a Poisson batch; a release over all records is one of rate 1."""


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(Event):
    """One release: a sum over a batch of fixed size, drawn without replacement, plus Gaussian noise.

    Args:
        batch_size: records in each batch, at most ``size``.
        size: records in the data set. It is public under this relation, which keeps the number of records.
        noise_multiplier: standard deviation of the noise in units of the clipping norm. Replacing one record changes
            the sum by up to twice that norm, which accountants take into account. Above 0.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> FixedSizeGaussian(batch_size=100, size=10_000, noise_multiplier=2.0).relation
    'replace one record'
    """

    batch_size: int
    size: int
    noise_multiplier: float

    mechanism: ClassVar[str] = "fixed-size Gaussian"
    neighbouring: ClassVar[Neighbouring] = Neighbouring.REPLACE_ONE
    sampling: ClassVar[str] = "fixed size, without replacement"

    def __post_init__(self) -> None:
        count(batch_size=self.batch_size, size=self.size)
        positive(noise_multiplier=self.noise_multiplier)
        if self.batch_size > self.size:
            raise ValueError(f"expected batch_size <= size, got batch_size={self.batch_size}, size={self.size}")


@dataclass(frozen=True, slots=True, repr=False)
class TruncatedPoissonGaussian(Event):
    """One release: a sum over a Poisson batch of at most a fixed size, plus Gaussian noise.

    A Poisson batch with more than ``largest_batch`` records is replaced by as many of them, drawn at random.

    Args:
        sampling_rate: probability, in (0, 1], with which each record enters the batch, independently of all others.
        noise_multiplier: standard deviation of the noise in units of the clipping norm. Above 0.
        largest_batch: the most records of a batch, at least 1.
        most_records: the most records that the data set may have: public, and declared. At least 1.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> TruncatedPoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1, largest_batch=150, most_records=10_000)
    TruncatedPoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1, largest_batch=150, most_records=10000)
    """

    sampling_rate: float
    noise_multiplier: float
    largest_batch: int
    most_records: int
    parts: Parts = ()

    mechanism: ClassVar[str] = "truncated Poisson Gaussian"
    sampling: ClassVar[str] = "Poisson, at most a fixed number"

    def __post_init__(self) -> None:
        all_of(
            lambda: probability(sampling_rate=self.sampling_rate),
            lambda: positive(noise_multiplier=self.noise_multiplier),
            lambda: count(largest_batch=self.largest_batch, most_records=self.most_records),
        )
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class BallsInBinsGaussian(Event):
    """One step of a pass over the data in which each record enters exactly one batch, drawn at random.

    At the beginning of a pass each record chooses one of ``bins`` batches, uniformly and independently of all others.
    The steps of a pass release the batches one by one: a sum over the batch, plus Gaussian noise.

    Args:
        bins: the batches of one pass, at least 1.
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one record. Above 0.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".

    >>> BallsInBinsGaussian(bins=100, noise_multiplier=2.0)
    BallsInBinsGaussian(bins=100, noise_multiplier=2.0)
    """

    bins: int
    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "balls-in-bins Gaussian"
    sampling: ClassVar[str] = "each record in one batch of a pass"

    def __post_init__(self) -> None:
        all_of(lambda: count(bins=self.bins), lambda: positive(noise_multiplier=self.noise_multiplier))
        _check_parts(self.parts)

    @property
    def sampling_rate(self) -> float:
        """The probability that a record is in the batch of a step."""
        return 1 / self.bins


@dataclass(frozen=True, slots=True, repr=False)
class BandedGaussian(Event):
    """One step of banded matrix factorisation: noise that is correlated over ``bands`` steps, on cyclic batches.

    Each record belongs to one of ``bands`` groups, drawn at random once. Step t releases the sum over a Poisson batch
    of group t modulo ``bands``, plus noise that partly takes back the noise of the ``bands`` - 1 steps before: with the
    strategy matrix C, lower triangular, of ``bands`` diagonals and with columns of norm 1 at most, all steps together
    release C times the sums plus independent Gaussian noise. A record takes part at most once in ``bands`` consecutive
    steps, so its parts of C are orthogonal, and a round of ``bands`` steps costs as much as one Poisson batch of rate
    ``bands * sampling_rate`` with this noise multiplier. A round that was begun is paid for as a whole.

    Args:
        sampling_rate: probability, in (0, 1], that a record is in the batch of a step. At most 1 / ``bands``.
        noise_multiplier: standard deviation of the independent noise in units of the sum's sensitivity to one record.
            Above 0.
        bands: diagonals of C, and steps of a round. At least 1; 1 is a :class:`PoissonGaussian`.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4.

    >>> step = BandedGaussian(sampling_rate=0.01, noise_multiplier=1.1, bands=8)
    >>> step.of_round
    PoissonGaussian(sampling_rate=0.08, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    bands: int
    parts: Parts = ()

    mechanism: ClassVar[str] = "banded Gaussian"
    sampling: ClassVar[str] = "cyclic Poisson"

    def __post_init__(self) -> None:
        all_of(
            lambda: probability(sampling_rate=self.sampling_rate),
            lambda: positive(noise_multiplier=self.noise_multiplier),
            lambda: count(bands=self.bands),
        )
        _check_parts(self.parts)
        if self.bands * self.sampling_rate > 1 + 1e-9:  # 49 * (1 / 49) is not 1
            raise ValueError(
                f"expected bands * sampling_rate <= 1, got {self.bands} * {self.sampling_rate:g}: each of {self.bands} "
                f"groups takes part in every {self.bands}th step. Use at most {math.floor(1 / self.sampling_rate)} "
                "bands, or a smaller batch"
            )

    @property
    def round_length(self) -> int:
        """The steps of a round."""
        return self.bands

    @property
    def of_round(self) -> PoissonGaussian:
        """The release that costs as much as one round."""
        rate = self.bands * self.sampling_rate
        return PoissonGaussian(1.0 if rate > 1 - 1e-12 else rate, self.noise_multiplier, self.parts)


def _check_parts(parts: Parts) -> None:
    for name, share in parts:
        probability(**{f"share of {name}": share})
    if len(dict(parts)) < len(parts):
        raise ValueError(f"expected parts of different names, got {', '.join(name for name, _ in parts)}")
    if parts and not math.isclose(total := math.fsum(share for _, share in parts), 1, rel_tol=1e-12):
        raise ValueError(f"expected shares that add up to 1, got {total:g} of {', '.join(n for n, _ in parts)}")
