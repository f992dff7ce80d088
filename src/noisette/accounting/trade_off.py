"""What a privacy curve means for an attacker: the errors of every test for one record, and the success that is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from noisette._internal.checks import open_fraction, probability
from noisette.accounting.accountants.interface import PrivacyCurve

# Every epsilon gives a valid bound; these suffice to come within a few parts in a thousand of the best one.
POINTS = 48
# The grid ends at the epsilon of the first of these deltas that has a finite one.
LAST_DELTAS = (1e-7, 1e-5, 1e-3, 0.1)
# At larger epsilons no bound is left for a false-positive rate above 1e-17.
MOST_EPSILON = 40.0
# Far more than the relative error of the few operations that turn epsilon and delta into a rate.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Bounds on every attack that has to tell two neighbouring data sets apart, from points of a privacy curve.

    The attacker knows both data sets and all outputs, and says "the record is in" or "it is not". A false positive says
    that it is in where it is not; a true positive finds it where it is. Where each of many records is in or out by
    chance, the bounds hold for the average rates too, because the largest rate of true positives is concave.

    Args:
        epsilons: points of the privacy profile, each 0 or more.
        deltas: an upper bound of delta at each of them.

    Guarantee: all rates are upper bounds of what an attacker can achieve, if the deltas are.

    Source: Wasserman and Zhou 2010, Theorem 2.4; Dong, Roth and Su 2022, Propositions 2.5 and 2.12.

    >>> from noisette.accounting import PldAccountant, PoissonGaussian
    >>> bounds = TradeOff.of(PldAccountant().compose({PoissonGaussian(0.01, 4.0): 10_000}))
    >>> round(bounds.true_positive_rate(false_positive_rate=0.001), 4)
    0.0025
    >>> round(bounds.advantage, 2), round(bounds.accuracy, 2)
    (0.1, 0.55)
    """

    epsilons: np.ndarray = field(repr=False)
    deltas: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, curve: PrivacyCurve, *, tail_delta: float = 0.0) -> Self:
        """The bounds from this curve, at about fifty epsilons.

        Args:
            curve: of any accountant.
            tail_delta: a part of delta that the curve does not know, such as :func:`noisette.accounting.tail_delta`.
        """
        ends = (curve.epsilon(delta=delta) for delta in LAST_DELTAS)
        last = min(next((end for end in ends if math.isfinite(end)), MOST_EPSILON), MOST_EPSILON)
        # Denser at small epsilons, which bound the frequent errors.
        epsilons = np.unique(last * np.linspace(0, 1, POINTS) ** 1.5)
        deltas = [min(1.0, curve.delta(epsilon=float(epsilon)) + tail_delta) for epsilon in epsilons]
        return cls(epsilons, np.array(deltas))

    def true_positive_rate(self, *, false_positive_rate: float) -> float:
        """The most true positives of an attack that has this rate of false positives.

        Raises:
            TypeError, ValueError: the rate is not in (0, 1].
        """
        probability(false_positive_rate=false_positive_rate)
        by_false_positives = self.deltas + np.exp(self.epsilons) * false_positive_rate
        by_true_negatives = 1 - np.exp(-self.epsilons) * (1 - self.deltas - false_positive_rate)
        return _at_most_one(np.minimum(by_false_positives, by_true_negatives).min())

    def false_negative_rate(self, *, false_positive_rate: float) -> float:
        """The trade-off function of f-DP: the least false negatives of an attack with this rate of false positives.

        Guarantee: a lower bound, as more errors are better for privacy.

        Raises:
            TypeError, ValueError: the rate is not in (0, 1].
        """
        return 1 - self.true_positive_rate(false_positive_rate=false_positive_rate)

    @property
    def advantage(self) -> float:
        """The most by which true positives can exceed false positives, from 0 to 1: the total variation distance.

        It is delta at epsilon 0, or less where another epsilon proves less.

        Source: Kairouz, Oh and Viswanath 2015, Theorem 3.4 (of one pair of epsilon and delta).
        """
        return _at_most_one((self.deltas + (1 - self.deltas) * np.tanh(self.epsilons / 2)).min())

    @property
    def accuracy(self) -> float:
        """The largest probability that a guess is right, where the record is in or out with equal probability."""
        return (1 + self.advantage) / 2

    def posterior(self, *, failure: float) -> float:
        """The certainty that the record is in, from 1/2 to 1, which an attacker who began at 1/2 does not exceed.

        The posterior probability exceeds this with a probability of at most ``failure`` where the record is in, and
        less often where it is not. The same holds for the certainty that it is not in, where it is not.

        A posterior above e^a / (1 + e^a) is a privacy loss above a. Outputs with such a loss have a probability p with
        the record, and at most e^-a p without it. So delta at any smaller epsilon is at least p (1 - e^(epsilon - a)),
        which bounds p.

        Raises:
            TypeError, ValueError: ``failure`` is not in (0, 1).
        """
        open_fraction(failure=failure)
        known = self.deltas < failure
        if not known.any():
            return 1.0
        loss = float((self.epsilons[known] - np.log1p(-self.deltas[known] / failure)).min())
        return _at_most_one(1 / (1 + math.exp(-loss)))


def _at_most_one(rate: float) -> float:
    return min(1.0, float(rate) * (1 + ROUNDING))
