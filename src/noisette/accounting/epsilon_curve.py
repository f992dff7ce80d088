"""Epsilon along a run, for a progress bar or a figure."""

from __future__ import annotations

from collections.abc import Sequence

from noisette._internal.checks import count
from noisette.accounting.accountants.interface import Accountant
from noisette.accounting.accountants.pld import PldAccountant
from noisette.accounting.calibrate import NOTHING, together
from noisette.accounting.events import Event, Events


def epsilon_curve(
    event: Event,
    *,
    checkpoints: Sequence[int],
    delta: float,
    accountant: Accountant | None = None,
    prior_events: Events = NOTHING,
) -> list[float]:
    """Epsilon after each of these numbers of steps, all of the same event.

    Args:
        event: the release of one step.
        checkpoints: numbers of steps, each at least 1.
        delta: the probability with which the bound on epsilon may fail, in (0, 1).
        accountant: ``PldAccountant(coarseness=4)`` unless given: quick, and up to 0.3 % above the default accountant.
        prior_events: releases before these steps, which count towards epsilon too.

    Guarantee: each value is an upper bound, like every epsilon of the accountant.

    Raises:
        TypeError, ValueError: a parameter is outside its range.

    >>> from noisette.accounting import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> [round(epsilon, 2) for epsilon in epsilon_curve(release, checkpoints=[100, 1000, 10_000], delta=1e-5)]
    [0.08, 0.27, 0.95]
    """
    accountant = PldAccountant(coarseness=4) if accountant is None else accountant
    count(**{f"checkpoints[{k}]": steps for k, steps in enumerate(checkpoints)})
    return [accountant.compose(together(prior_events, event, steps)).epsilon(delta=delta) for steps in checkpoints]
