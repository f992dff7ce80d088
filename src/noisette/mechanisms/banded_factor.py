"""The coefficients of banded noise: the strategy matrix whose noise moves the sums over all steps least.

With a lower triangular Toeplitz matrix C of ``bands`` diagonals and columns of norm 1, the noise of the steps is
C^-1 times independent noise, and the weights keep its sums over the steps: A C^-1 with A the matrix of ones below and
on the diagonal. Of all such C, the one with the smallest mean squared error of these sums is found by descent.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from noisette.accounting.events import BandedGaussian, StepRelease
from noisette.errors import all_of, count

# The norm of a column is below 1 by this, more than rounding the coefficients to single precision can add.
SLACK = 2.0**-20

# The descent's first step has length 1 in units that are so much smaller: a longer one leaves the coefficients whose
# inverse does not grow.
_SCALE = 30.0

# The steps after which the inverse of C adds nothing that counts.
_LONG = 10_000


def correlation_of(event: StepRelease, steps: int) -> tuple[float, ...]:
    """The first column of C for so many steps of this release; of independent noise 1 alone."""
    return banded_coefficients(event.bands, max(1, steps)) if isinstance(event, BandedGaussian) else (1.0,)


@lru_cache(maxsize=16)
def banded_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """The first column of C, down its ``bands`` diagonals: the coefficients of a record's part in that many steps.

    Args:
        bands: the number of diagonals, at least 1.
        steps: the number of steps whose sums are to have the least error, at least 1.

    Guarantee: the Euclidean norm of the coefficients is 1 at most, and so is that of every column of C, of which the
    last ones are cut off.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; Toeplitz matrices: McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism". The descent starts from the square root of A.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.

    >>> [round(value, 3) for value in banded_coefficients(bands=4, steps=100)]
    [0.683, 0.483, 0.414, 0.359]
    """
    all_of(lambda: count(bands=bands), lambda: count(steps=steps))
    if bands == 1:
        return (1.0,)
    best, fewer = square_root_of_sums(bands), [steps]
    while fewer[0] > 2 * bands:
        fewer.insert(0, fewer[0] // 2)
    for number in fewer:
        best = min(best, _descended(best, number), key=lambda values: _log_error(values, number)[0])
    return tuple((best * (1 - SLACK) / math.sqrt(math.fsum(best**2))).tolist())


def _descended(start: np.ndarray, steps: int) -> np.ndarray:
    """Coefficients of less error for so many steps, from those for half as many: the best ones are not far."""
    from scipy.optimize import minimize  # imported here because the import takes a third of a second

    def scaled(values: np.ndarray) -> tuple[float, np.ndarray]:
        error, slope = _log_error(values / _SCALE, steps)
        return error, slope / _SCALE

    found = minimize(scaled, start * (_SCALE / start[0]), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return found.x / _SCALE


def square_root_of_sums(bands: int) -> np.ndarray:
    """The first coefficients of the lower triangular Toeplitz matrix whose square is A, shape (bands,)."""
    k = np.arange(1, bands)
    return np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))


def deviations_of(coefficients: tuple[float, ...]) -> np.ndarray:
    """The standard deviation of the noise of each step, in units of the independent noise; the last holds for all more.

    >>> deviations_of((0.8, 0.6))[:3].round(2).tolist()
    [1.25, 1.56, 1.71]
    """
    from scipy.signal import lfilter

    impulse = np.zeros(_LONG)
    impulse[0] = 1.0
    return np.sqrt(np.cumsum(np.square(lfilter([1.0], coefficients, impulse))))


def mean_squared_error(coefficients: tuple[float, ...], steps: int) -> float:
    """The variance of the noise in the sums over the first t steps, averaged over t = 1 to ``steps``.

    In units of the independent noise; (steps + 1) / 2 where noise is not correlated.

    >>> mean_squared_error((1.0,), steps=99)
    50.0
    """
    sums = _inverse_sums(np.array(coefficients), steps)
    return float(np.arange(steps, 0, -1) @ sums**2) / steps


def _inverse_sums(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """The first column of A C^-1, shape (steps,): sums over the first column of C^-1."""
    from scipy.signal import lfilter

    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return np.cumsum(lfilter([1.0], coefficients, impulse))


def _log_error(coefficients: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """The logarithm of the squared norm of A C^-1 times that of a column of C, and its gradient.

    The derivative of C^-1 with respect to the coefficient of diagonal j is -C^-2, moved down by j.
    """
    from scipy.signal import lfilter

    with np.errstate(over="ignore", invalid="ignore"):
        sums = _inverse_sums(coefficients, steps)
        weighted = np.arange(steps, 0, -1) * sums
        error, square = float(weighted @ sums), float(coefficients @ coefficients)
        if not math.isfinite(error) or coefficients[0] <= 0:
            return 1e300, np.zeros_like(coefficients)
        moved = lfilter([1.0], coefficients, sums)
        slopes = [weighted[j:] @ moved[: max(0, steps - j)] for j in range(len(coefficients))]
        return math.log(error * square), -2 * np.array(slopes) / error + 2 * coefficients / square
