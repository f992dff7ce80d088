"""How often a truncated Poisson batch is full, so that a record exchanges another one instead of being added."""

from __future__ import annotations

import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import TruncatedPoissonGaussian


def full_batch_probability(event: TruncatedPoissonGaussian) -> float:
    """The probability, rounded upwards, that the batch is full without the record, in a data set of the largest size.

    >>> from noisette.accounting import TruncatedPoissonGaussian
    >>> round(full_batch_probability(TruncatedPoissonGaussian(0.5, 1.0, largest_batch=2, most_records=3)), 3)
    0.5
    """
    if event.largest_batch > event.most_records:
        return 0.0
    more = event.most_records - event.largest_batch + 1
    return min(1.0, float(scipy.special.betainc(event.largest_batch, more, event.sampling_rate)) * (1 + 1e-9))
