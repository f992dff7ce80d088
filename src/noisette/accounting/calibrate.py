"""How much noise a budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from scipy.optimize import root_scalar

from noisette._check import count, open_fraction, positive, probability
from noisette.accounting.accountant import LEAST_NOISE, MOST_NOISE, Accountant
from noisette.accounting.events import PoissonGaussian
from noisette.accounting.pld import PldAccountant

# The result is within this part of the least noise that keeps the budget.
TOLERANCE = 1e-3


def noise_multiplier_for(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: Accountant | None = None
) -> float:
    """The noise multiplier with which these steps stay within the budget, and hardly more.

    Args:
        epsilon: the budget, above 0.
        delta: the probability with which the bound on epsilon may fail, in (0, 1).
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        accountant: prices the releases; :class:`PldAccountant` unless given.

    Guarantee: the accountant prices the result at ``epsilon`` or less. With one part in a thousand less noise it would
    be more; where the budget is kept at any noise, the result is the least noise that can be priced, 0.001.

    Raises:
        TypeError, ValueError: a number is outside its range, or no noise keeps the budget by this accountant.

    >>> sigma = noise_multiplier_for(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=6000)
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=sigma)
    >>> 2.99 < PldAccountant().price({release: 6000}).epsilon(delta=1e-5) <= 3.0
    True
    """
    positive(epsilon=epsilon)
    open_fraction(delta=delta)
    probability(sampling_rate=sampling_rate)
    count(steps=steps)
    accountant = PldAccountant() if accountant is None else accountant
    quick = accountant
    if isinstance(accountant, PldAccountant):
        quick = replace(accountant, coarseness=3 * accountant.coarseness)

    def price(accountant: Accountant, log_noise: float) -> float:
        release = PoissonGaussian(sampling_rate, math.exp(log_noise))
        return accountant.price({release: steps}).epsilon(delta=delta) / epsilon

    if price(accountant, math.log(MOST_NOISE)) > 1:
        raise ValueError(
            f"the {accountant.name} accountant cannot promise epsilon={epsilon} at delta={delta} for {steps} steps of "
            f"rate {sampling_rate}, whatever the noise; ask for a larger epsilon or delta, or another accountant"
        )
    near = _first_guess(epsilon, delta, sampling_rate, steps)
    near = _least_affordable(lambda log_noise: price(quick, log_noise), near, stride=0.1)
    return math.exp(_least_affordable(lambda log_noise: price(accountant, log_noise), near, stride=TOLERANCE / 4))


def _least_affordable(price: Callable[[float], float], start: float, *, stride: float) -> float:
    """The least x, within the tolerance and on the safe side, whose price (a share of the budget) is 1 or less."""

    @cache
    def excess(x: float) -> float:
        return math.log(min(max(price(x), 1e-9), 1e9))  # finite, for the root finder

    dear = cheap = start
    while excess(cheap) > 0:  # ends, because the most noise keeps the budget
        dear, cheap, stride = cheap, cheap + stride, 2 * stride
    while excess(dear) <= 0:  # ends, because no noise at all is over every budget
        dear, cheap, stride = dear - stride, dear, 2 * stride

    if cheap - dear < TOLERANCE * 0.9:
        return cheap
    root = float(root_scalar(excess, bracket=(dear, cheap), xtol=TOLERANCE / 5).root)
    while excess(root) > 0:
        root += TOLERANCE / 4
    return root


def _first_guess(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The log of the noise multiplier if all releases together were one Gaussian: close, but no guarantee.

    Source: the central limit theorem of Bu, Dong, Long and Su 2020, which understates epsilon.
    """
    from dp_accounting import get_sigma_gaussian

    distance = 1 / get_sigma_gaussian(epsilon, delta)  # between the two means, in standard deviations
    noise = 1 / math.sqrt(math.log1p((distance / sampling_rate) ** 2 / steps))
    return math.log(min(max(noise, LEAST_NOISE), MOST_NOISE))
