"""Banded noise: correlated over steps by a banded factor."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from noisette.core.noise import ALL_WHOLE, WHOLE, GaussianNoise, Named, Window, Windows
from noisette.errors import all_of, count

SLACK = 2.0**-20  # the norm of a column is below 1 by this, more than rounding to single precision can add
# The descent's first step has length 1 in units so much smaller: a longer one leaves where the inverse does not grow.
_SCALE = 30.0
_LONG = 10_000  # steps after which the inverse of C adds nothing that counts


@lru_cache(maxsize=16)
def banded_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """The first column of C, down its ``bands`` diagonals, for which sums over so many steps have the least error.

    Guarantee: the Euclidean norm of the coefficients, and of every column of C (the last are cut off), is 1 at most.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; Toeplitz matrices: McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism". The descent starts from the square root of A.
    What is no whole number of at least 1 is a ``TypeError`` or ``ValueError``.

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
    """The deviation of the noise of each step in units of the independent noise; the last one holds for all more."""
    return np.sqrt(np.cumsum(np.square(_inverse(np.array(coefficients), _LONG))))


def mean_squared_error(coefficients: tuple[float, ...], steps: int) -> float:
    """The variance of noise in sums over t steps, in units of the independent noise, averaged over t = 1 to ``steps``.

    Where noise is not correlated it is (steps + 1) / 2.
    """
    return float(np.arange(steps, 0, -1) @ np.cumsum(_inverse(np.array(coefficients), steps)) ** 2) / steps


def _inverse(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """The first column of C^-1, shape (steps,); its sums are that of A C^-1."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], coefficients, np.eye(1, steps)[0]))


def _log_error(coefficients: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """The logarithm of the squared norm of A C^-1 times that of a column of C, and its gradient.

    The derivative of C^-1 with respect to the coefficient of diagonal j is -C^-2, moved down by j.
    """
    from scipy.signal import lfilter

    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.cumsum(_inverse(coefficients, steps))
        weighted = np.arange(steps, 0, -1) * sums
        error, square = float(weighted @ sums), float(coefficients @ coefficients)
        if not math.isfinite(error) or coefficients[0] <= 0:
            return 1e300, np.zeros_like(coefficients)
        moved = lfilter([1.0], coefficients, sums)
        slopes = [weighted[j:] @ moved[: max(0, steps - j)] for j in range(len(coefficients))]
        return math.log(error * square), -2 * np.array(slopes) / error + 2 * coefficients / square


@dataclass
class _Earlier:
    """The noise of the steps before, the latest first, and the step that it ends with."""

    step: int = -1
    noises: deque[Tensor] = field(default_factory=deque)


class BandedNoise:
    """Noise of the rows of C^-1, with the lower triangular Toeplitz matrix C of these coefficients c.

    The noise w of a step follows from the independent noise xi of the step and the noise of the steps before it:

        w_t = (xi_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0.

    So C w = xi. The last b - 1 noises of each tensor are kept, in single precision. They are as secret as the key, and
    never written: where the step before is missing (the first step of a process, one after a release that failed) the
    recursion starts anew. C then has two blocks in place of one, whose columns are no longer than those of C. A
    ``ValueError`` asks for at least two coefficients, of norm 1 at most, the first above 0.

    Guarantee: the noise of a step is a function of (secret key, name, element) and of the steps since the recursion
    started, the same to the bit however a tensor is divided into windows, as long as each window stays the same.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", section 4.
    """

    def __init__(self, independent: GaussianNoise, coefficients: Sequence[float]) -> None:
        norm = math.sqrt(math.fsum(float(c) ** 2 for c in coefficients))
        if len(coefficients) < 2 or not coefficients[0] > 0 or not norm <= 1:
            got = f"{len(coefficients)} of norm {norm:.9g}: divide them by their norm"
            raise ValueError(f"expected at least two coefficients of norm 1 at most, the first one above 0, got {got}")
        self._independent = independent
        self._first = float(coefficients[0])
        self._ratios = [float(c) / self._first for c in coefficients[1:]]
        self._earlier: dict[tuple[str, Window, int, torch.device], _Earlier] = {}

    @torch.no_grad()
    def add_(
        self, tensors: Named, *, step: int, std: float = 1.0, divisor: float = 1.0, windows: Windows = ALL_WHOLE
    ) -> None:
        """As :meth:`GaussianNoise.add_`. Where ``std`` differs between steps, the noise is correlated in its units."""
        noises = {name: torch.zeros_like(tensor).view(-1) for name, tensor in tensors.items() if tensor.numel()}
        kept = {name: window for name, window in windows.items() if name in noises or name not in tensors}
        self._independent.add_(noises, step=step, std=1 / self._first, windows=kept)
        for name, noise in noises.items():
            window, tensor = windows.get(name, WHOLE), tensors[name].view(-1)
            self._correlate((name, window, len(noise), noise.device), noise, step)
            tensor.div_(divisor).add_(noise.mul_(std))

    def _correlate(self, place: tuple[str, Window, int, torch.device], noise: Tensor, step: int) -> None:
        """Subtract the part that takes back the noise of earlier steps, and keep the noise of this step."""
        earlier = self._earlier.get(place)
        if earlier is None or earlier.step != step - 1:
            earlier = self._earlier[place] = _Earlier()
        for ratio, kept in zip(self._ratios, earlier.noises, strict=False):
            noise.sub_(kept * ratio)  # in two operations: one with alpha is rounded differently at the end of a tensor
        full = len(earlier.noises) == len(self._ratios)
        latest = earlier.noises.pop() if full else torch.empty_like(noise, dtype=torch.float32)
        earlier.noises.appendleft(latest.copy_(noise))
        earlier.step = step
