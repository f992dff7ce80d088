"""Batches into which each record falls exactly once in a pass, bounded by Poisson batches of a larger rate."""

from __future__ import annotations

import math

import numpy as np

# Points of the integral over the Gaussian, and how far they reach.
POINTS, REACH = 4001, 12.0


def poisson_rate(bins: int, noise_multiplier: float, failure: float) -> float:
    """A sampling rate of Poisson batches that cost no less, except with this probability for each step.

    Let Y_j be the ratio of the densities of step j with and without the record in its batch. After steps 1 to i - 1 the
    record is in batch i with probability

        1 / (Y_1 + ... + Y_(i-1) + bins - i + 1),

    whatever was released before. So the pass is a sequence of Poisson releases of at most the rate
    1 / (bins (1 - g)), unless a sum of Y_j falls short of its mean by more than g * bins. Without the record the Y_j
    are independent with mean 1. With it they are larger, so this is less likely. By Doob's inequality the probability
    is at most E[exp(x (1 - Y))]^bins exp(-x g bins), for every x > 0.

    Args:
        bins: the batches of one pass.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        failure: the probability, which is added to delta once for each step.

    Source: Feldman and Shenfeld 2025, "Privacy amplification by random allocation", bound their scheme the same way.

    >>> round(1000 * poisson_rate(1000, noise_multiplier=2.0, failure=1e-15), 2)
    1.15
    """
    u = np.linspace(-REACH, REACH, POINTS)
    weights = np.exp(-(u**2) / 2)
    weights /= weights.sum()
    ratio = np.exp(np.minimum(u / noise_multiplier - noise_multiplier**-2 / 2, 700.0))
    shortfalls = []
    for x in np.geomspace(1e-3, 1e3, 200):
        # a sum over the density at equal distances has an error far below the one added
        log_mean = x + math.log(float(weights @ np.exp(-x * ratio)) + 1e-14)
        shortfalls.append((log_mean + math.log(1 / failure) / bins) / x)
    kept = 1 - float(min(shortfalls))
    return min(1.0, 1 / (bins * kept)) if kept > 0 else 1.0
