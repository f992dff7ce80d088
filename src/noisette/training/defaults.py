"""Settings that need no search: clipping norm, batch, passes and learning rate, from public numbers alone.

``docs/how-to/choose-settings.md`` explains each rule, with its measurement on four public data sets.
"""

import math
from dataclasses import dataclass

from noisette import errors as checks

# Gradients are clipped to norm one; the learning rate is in the same unit, so no other value needs to be tried.
MAX_GRAD_NORM = 1.0
# Enough steps to train, few enough that a step has little noise (`accounting.calibrate` recommends as few as allowed).
STEPS = 500
# Passes over the data: small data sets have little computation to save, and larger batches have less noise.
MOST_EPOCHS, FEWEST_EPOCHS, GRADIENTS = 150.0, 10.0, 2_000_000
# Of one number of a row, and records for each weight that a model of sums of functions should have.
MOST_KNOTS, RECORDS_PER_WEIGHT = 8, 16
# How far the weights may move in all, in the unit in which inputs have norm one.
REACH = 100.0
SQUARES_REACH = 4.0  # how far noise alone may move them, where a squared error has its best weights near the first
SQUARES_SIGNAL = 12.0  # in units of the noise; below it a constant is as good, on tables of 340 rows
NETWORK_REACH = 30.0  # of a network with hidden layers, whose inputs are from -1 to 1
# The model for tables, whose last layer alone has gradients of norm 2: others than frequent classes are clipped below.
TABLE, TABLE_NORM = "table", 2.0
# With its hidden layer they are larger, most of all for rare classes: from so many times epsilon records on, there is
# signal for the noise of this norm, with the rate for norm 2.
MANY_RECORDS, LARGER_TABLE_NORM = 10_000.0, 3.0
# Epsilon times records, over the root of the number of weights, from which on linear models of tables are clipped at 2.
SIGNAL = 500.0
MOMENTUM = 0.9


@dataclass(frozen=True)
class Batches:
    """The expected size of a batch, and the passes over the declared size."""

    expected_batch_size: int
    epochs: float


def batches_for(size: int) -> Batches:
    """Batch size and epochs for this declared size: about 500 steps, at most 2 million gradients, 10 to 150 passes.

    >>> batches_for(1_000), batches_for(40_000)
    (Batches(expected_batch_size=300, epochs=150.0), Batches(expected_batch_size=4000, epochs=50.0))
    >>> batches_for(1_000_000)
    Batches(expected_batch_size=20000, epochs=10.0)
    """
    checks.count(size=size)
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, GRADIENTS / size))
    return Batches(max(1, math.ceil(size * epochs / STEPS)), epochs)


def delta_for(size: int) -> float:
    """The delta for this declared number of records: 1e-5, or a tenth of one over the size where that is smaller."""
    checks.count(size=size)
    return min(1e-5, 1 / (10 * size))


def knots_for(features: int, size: int) -> int:
    """Fixed triangles for each number of a row: 8, or fewer where records are few for the weights, down to none."""
    checks.count(features=features, size=size)
    return min(MOST_KNOTS, max(0, size // (RECORDS_PER_WEIGHT * features) - 1))


def learning_rate_for(
    *,
    dimensions: int,
    noise_multiplier: float,
    expected_batch_size: float,
    steps: int,
    max_grad_norm: float = MAX_GRAD_NORM,
    reach: float = REACH,
    momentum: float = 0.0,
    curvature: float | None = None,
) -> float:
    """The learning rate of SGD: (1 - m) reach / (C sqrt(T (1 + d (sigma / B)^2))); with ``curvature`` perhaps less.

    The noised mean of clipped gradients has a squared norm of at most about C^2 (1 + d (sigma / B)^2), and T steps with
    this rate are the classical choice for a convex loss whose best weights are at distance ``reach``. Here d is the
    number of trained weights, sigma the noise multiplier, B the expected batch size, C the clipping norm, m the
    momentum, and ``curvature`` the largest second derivative of the loss, of a squared error: at twice the rate
    (1 + m) / curvature steps would not settle even without noise, and T steps of noise alone, of length
    C sqrt(d) sigma / B, move the weights by ``SQUARES_REACH`` at most.

    Source: Nemirovski et al. 2009, "Robust stochastic approximation", section 2.2; Bassily et al. 2014, theorem 2.4.

    >>> round(learning_rate_for(dimensions=1000, noise_multiplier=2.0, expected_batch_size=1000, steps=500), 2)
    4.46
    """
    checks.count(dimensions=dimensions, steps=steps)
    checks.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
    checks.positive(max_grad_norm=max_grad_norm, reach=reach)
    checks.below_one(momentum=momentum)
    if curvature is not None:
        checks.positive(curvature=curvature)
    noise = dimensions * (noise_multiplier / expected_batch_size) ** 2
    rate = (1 - momentum) * reach / (max_grad_norm * math.sqrt(steps * (1 + noise)))
    if curvature is None:
        return rate
    by_noise = (1 - momentum) * SQUARES_REACH / (max_grad_norm * math.sqrt(steps * noise))
    return min(rate, by_noise, (1 + momentum) / curvature)
