"""``noisette account``: the privacy cost of a run."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from noisette._internal import checks
from noisette.accounting import FixedSizeGaussian, GroupPrivacy, PldAccountant, PoissonGaussian
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.errors import plain_errors
from noisette.cli.privacy_cost import PrivacyCost


@plain_errors()
def account(
    *,
    noise_multiplier: Annotated[float, options.NOISE_MULTIPLIER],
    steps: Annotated[int, options.STEPS],
    sampling_rate: options.SamplingRate = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Records in each batch, drawn without replacement, instead of a sampling rate; needs --size. The "
            "guarantee is for replacing one record, the noise in units of the clipping norm."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Records in the data set, for --batch-size.")] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Compute delta at this epsilon, instead of epsilon at a delta: above 0.")
    ] = None,
    group_size: Annotated[
        int,
        typer.Option(max=100_000, help="Records that one person may have: the guarantee covers all of them."),
    ] = 1,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
) -> None:
    """Compute the privacy cost of a training run: epsilon at a delta, or delta at an epsilon.

    Example: noisette account --sampling-rate 0.01 --noise-multiplier 1.3 --steps 6000 --delta 1e-5
    """
    checks.all_of(
        partial(checks.exactly_one, sampling_rate=sampling_rate, batch_size=batch_size),
        partial(_check_batches, batch_size, size),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        partial(checks.count, group_size=group_size),
        partial(_check_group, batch_size, group_size),
        partial(checks.positive, noise_multiplier=noise_multiplier),
        partial(checks.count, steps=steps),
        partial(checks.exactly_one, delta=delta, epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
        partial(options.at_most, options.MOST_RECORDS, size=size, batch_size=batch_size),
        partial(options.check_plot, plot),
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
    curve = ACCOUNTANTS[accountant].compose({event: steps})
    if delta is None:
        assert epsilon is not None
        cost = PrivacyCost(event, steps, accountant, epsilon, curve.delta(epsilon=epsilon), found="delta")
    else:
        cost = PrivacyCost(event, steps, accountant, curve.epsilon(delta=delta), delta, found="epsilon")
    cost.show(as_json=as_json, plot=plot, command="account")


def _check_batches(batch_size: int | None, size: int | None) -> None:
    if batch_size is None and size is None:
        return
    if batch_size is None or size is None:
        raise ValueError("batches of a fixed size need both batch_size and size")
    FixedSizeGaussian(batch_size, size, noise_multiplier=1.0)  # checks its arguments


def _check_group(batch_size: int | None, group_size: int) -> None:
    if batch_size is not None and group_size > 1:
        raise ValueError("a group_size above 1 needs a sampling_rate; batches of a fixed size are not supported")
