"""Releases by other mechanisms and other tools, so that one ledger holds everything that was released on a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noisette.accounting.events.event import Event
from noisette.errors import all_of, below_one, not_negative, positive


@dataclass(frozen=True, slots=True)
class Laplace(Event):
    """One release with Laplace noise.

    Args:
        noise_multiplier: scale of the noise in units of the L1 sensitivity: 1 / epsilon of the release. Above 0.

    Raises:
        TypeError, ValueError: the value is not a number above 0.

    >>> Laplace(noise_multiplier=2.0)
    Laplace(noise_multiplier=2.0)
    """

    noise_multiplier: float

    mechanism: ClassVar[str] = "Laplace"
    sampling: ClassVar[str] = "none (every record)"

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(Event):
    """One released count with noise from the discrete Gaussian distribution, where one record changes the count by 1.

    Args:
        noise_multiplier: the parameter sigma of the distribution, close to its standard deviation. Above 0.

    Raises:
        TypeError, ValueError: the value is not a number above 0.

    Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy".

    >>> DiscreteGaussian(noise_multiplier=5.0)
    DiscreteGaussian(noise_multiplier=5.0)
    """

    noise_multiplier: float

    mechanism: ClassVar[str] = "discrete Gaussian"
    sampling: ClassVar[str] = "none (every record)"

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class ZcdpAmount(Event):
    """A cost that another tool states as zero-concentrated differential privacy.

    Args:
        rho: the cost, above 0.
        tool: what was released and by which tool, in a few words. It changes no privacy cost.

    Guarantee: nothing checks the amount; the ledger's guarantee holds if the statement of that tool does, for adding
    or removing one record.

    Raises:
        TypeError, ValueError: ``rho`` is not a number above 0.

    >>> ZcdpAmount(rho=0.1, tool="table of counts")
    ZcdpAmount(rho=0.1, tool='table of counts')
    """

    rho: float
    tool: str = ""

    mechanism: ClassVar[str] = "declared zCDP"
    sampling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        positive(rho=self.rho)


@dataclass(frozen=True, slots=True)
class DpAmount(Event):
    """A cost that another tool states as epsilon with delta.

    Args:
        epsilon: the cost, 0 or more.
        delta: the probability with which the bound on epsilon may fail, in [0, 1).
        tool: what was released and by which tool, in a few words. It changes no privacy cost.

    Guarantee: nothing checks the amount; the ledger's guarantee holds if the statement of that tool does, for adding
    or removing one record.

    Raises:
        TypeError, ValueError: a value is not a number in its range.

    >>> DpAmount(epsilon=0.5, delta=1e-9, tool="synthetic table")
    DpAmount(epsilon=0.5, delta=1e-09, tool='synthetic table')
    """

    epsilon: float
    delta: float = 0.0
    tool: str = ""

    mechanism: ClassVar[str] = "declared epsilon and delta"
    sampling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        all_of(lambda: not_negative(epsilon=self.epsilon), lambda: below_one(delta=self.delta))
