"""``noisette account``: what a run costs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from noisette._internal import checks
from noisette.accounting import FixedSizeGaussian, GroupPrivacy, PoissonGaussian
from noisette.cli.accountants import ACCOUNTANTS, AccountantName
from noisette.cli.errors import plain_errors
from noisette.cli.plot import PlotFile, check_plot
from noisette.cli.prices import DELTA, NOISE_MULTIPLIER, SAMPLING_RATE, STEPS, AccountantChoice, AsJson, Price


@plain_errors()
def account(
    *,
    noise_multiplier: Annotated[float, NOISE_MULTIPLIER],
    steps: Annotated[int, STEPS],
    sampling_rate: Annotated[float | None, SAMPLING_RATE] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Records in each batch, drawn without replacement, instead of a sampling rate; needs --size. The "
            "price is for replacing one record, the noise in units of the norm that each example is clipped to."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Records in the data set, for --batch-size.")] = None,
    delta: Annotated[float | None, DELTA] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Say the delta at this epsilon, instead of epsilon at a delta: above 0.")
    ] = None,
    group_size: Annotated[
        int, typer.Option(max=100_000, help="Records that one person may have: the price is for all of them at once.")
    ] = 1,
    accountant: AccountantChoice = AccountantName.PLD,
    as_json: AsJson = False,
    plot: PlotFile = None,
) -> None:
    """Say what a training run costs: its epsilon at a delta, or its delta at an epsilon.

    Example: noisette account --sampling-rate 0.01 --noise-multiplier 1.3 --steps 6000 --delta 1e-5
    """
    checks.all_of(
        partial(_check_sampling, sampling_rate, batch_size, size, group_size),
        partial(checks.positive, noise_multiplier=noise_multiplier),
        partial(checks.count, steps=steps),
        partial(checks.exactly_one, delta=delta, epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        partial(check_plot, plot),
    )
    event: PoissonGaussian | FixedSizeGaussian | GroupPrivacy
    if sampling_rate is None:
        assert batch_size is not None
        assert size is not None
        event = FixedSizeGaussian(batch_size, size, noise_multiplier)
    else:
        event = PoissonGaussian(sampling_rate, noise_multiplier)
        if group_size > 1:
            event = GroupPrivacy(event, group_size)
    curve = ACCOUNTANTS[accountant][0].compose({event: steps})
    if delta is None:
        assert epsilon is not None
        price = Price(event, steps, accountant, epsilon, curve.delta(epsilon=epsilon), found="delta")
    else:
        price = Price(event, steps, accountant, curve.epsilon(delta=delta), delta, found="epsilon")
    price.show(as_json=as_json, plot=plot, command="account")


def _check_sampling(sampling_rate: float | None, batch_size: int | None, size: int | None, group_size: int) -> None:
    """The batches are described in one way, and in a way that a group can be priced for."""
    checks.all_of(
        partial(checks.exactly_one, sampling_rate=sampling_rate, batch_size=batch_size),
        partial(_check_batches, batch_size, size),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        partial(checks.count, group_size=group_size),
        partial(_check_group, batch_size, group_size),
    )


def _check_batches(batch_size: int | None, size: int | None) -> None:
    if batch_size is None and size is None:
        return
    if batch_size is None or size is None:
        raise ValueError("batches of a fixed size need both batch_size and size")
    FixedSizeGaussian(batch_size, size, noise_multiplier=1.0)  # which checks them


def _check_group(batch_size: int | None, group_size: int) -> None:
    if batch_size is not None and group_size > 1:
        raise ValueError("a group_size has a price with a sampling_rate only, not with batches of a fixed size")
