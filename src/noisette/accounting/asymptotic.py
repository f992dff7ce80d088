"""What the moments accountant's paper proves without a computer: to see what matters, never to report.

Both bounds leave out what is small where the noise is large and the batch a small part of the data; outside that range
they are refused. Prices come from the accountants.
"""

from __future__ import annotations

import math

from noisette._internal.checks import count, open_fraction, positive, probability
from noisette.accounting.events import PoissonGaussian

# The constant of Theorem 1 for which its proof goes through wherever Lemma 3 holds.
C2 = 2.0


def leading_log_moment(event: PoissonGaussian, order: int) -> float:
    """The leading term of Lemma 3, q^2 order (order + 1) / ((1 - q) sigma^2): about twice the moment itself.

    Guarantee: none; the lemma adds a remainder of the size of (q order / sigma)^3.

    Raises:
        TypeError, ValueError: the order is no whole number of at least 1, or not among :func:`orders_of_lemma`.

    Source: Abadi et al. 2016, Lemma 3.

    >>> round(leading_log_moment(PoissonGaussian(0.01, 4.0), 32), 5)
    0.00667
    """
    count(order=order)
    if order not in (orders := orders_of_lemma(event)):
        raise ValueError(f"expected an order of Lemma 3, 1 to {orders.stop - 1} for {event!r}, got order={order}")
    q, sigma = event.sampling_rate, event.noise_multiplier
    return q**2 * order * (order + 1) / ((1 - q) * sigma**2)


def orders_of_lemma(event: PoissonGaussian) -> range:
    """The orders from 1 to sigma^2 ln(1 / (q sigma)), of which Lemma 3 speaks.

    Raises:
        ValueError: it speaks of none, because sigma is below 1 or q not below 1 / (16 sigma).

    Source: Abadi et al. 2016, Lemma 3.

    >>> orders_of_lemma(PoissonGaussian(0.01, 4.0))
    range(1, 52)
    """
    q, sigma = event.sampling_rate, event.noise_multiplier
    if sigma < 1 or 16 * q * sigma >= 1:
        raise ValueError(f"Lemma 3 asks for noise_multiplier >= 1 and sampling_rate < 1 / (16 sigma), got {event!r}")
    return range(1, math.floor(sigma**2 * math.log(1 / (q * sigma))) + 1)


def noise_of_theorem(*, epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The noise multiplier of Theorem 1, 2 q sqrt(steps ln(1 / delta)) / epsilon: how noise grows, and with what.

    It is what the leading term of Lemma 3 asks for at the order 2 ln(1 / delta) / epsilon. Computed moments, and
    :func:`noise_multiplier_for`, ask for a good deal less.

    Guarantee: none; see :func:`leading_log_moment`.

    Raises:
        TypeError, ValueError: a number is outside its range, or the result outside that of Lemma 3.

    Source: Abadi et al. 2016, Theorem 1; the constant from its proof.

    >>> round(noise_of_theorem(epsilon=1.26, delta=1e-5, sampling_rate=0.01, steps=10_000), 2)
    5.39
    """
    positive(epsilon=epsilon)
    open_fraction(delta=delta)
    probability(sampling_rate=sampling_rate)
    count(steps=steps)
    noise = C2 * sampling_rate * math.sqrt(steps * math.log(1 / delta)) / epsilon
    order = max(1, math.ceil(2 * math.log(1 / delta) / epsilon))
    leading_log_moment(PoissonGaussian(sampling_rate, noise), order)
    return noise
