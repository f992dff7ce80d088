"""``noisette account``: the privacy cost of a run."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from noisette import errors as checks
from noisette.accounting import BandedGaussian, FixedSizeGaussian, GroupPrivacy, PldAccountant, PoissonGaussian
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.errors import plain_errors
from noisette.cli.privacy_cost import PrivacyCost


@plain_errors()
def account(
    *,
    noise_multiplier: Annotated[float, options.NOISE],
    steps: Annotated[int | None, options.STEPS] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the declared size, instead of --steps: above 0.")
    ] = None,
    sampling_rate: options.SamplingRate = None,
    expected_batch_size: Annotated[
        float | None,
        typer.Option(help="Expected records in a Poisson batch, instead of a sampling rate; needs --size."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Records in each batch, drawn without replacement, instead of a sampling rate; needs --size. The "
            "guarantee is for replacing one record, the noise in units of the clipping norm."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Records in the data set, for --batch-size and --expected-batch-size.")
    ] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Compute delta at this epsilon, instead of epsilon at a delta: above 0.")
    ] = None,
    group_size: Annotated[
        int,
        typer.Option(max=100_000, help="Records that one person may have: the guarantee covers all of them."),
    ] = 1,
    bands: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Steps over which noise is correlated, with cyclic batches; needs a sampling rate."
        ),
    ] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
) -> None:
    """Compute the privacy cost of a training run: epsilon at a delta, or delta at an epsilon.

    Example: noisette account --size 60000 --expected-batch-size 600 --epochs 60 --noise 1.3 --delta 1e-5
    """
    checks.all_of(
        partial(
            checks.exactly_one,
            sampling_rate=sampling_rate,
            expected_batch_size=expected_batch_size,
            batch_size=batch_size,
        ),
        partial(checks.exactly_one, steps=steps, epochs=epochs),
        partial(_check_batches, batch_size, expected_batch_size, size),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        partial(checks.count, group_size=group_size),
        partial(_check_group, batch_size, group_size),
        partial(_check_bands, batch_size, group_size, bands),
        partial(checks.positive, noise_multiplier=noise_multiplier),
        lambda: steps is None or checks.count(steps=steps),
        lambda: epochs is None or checks.positive(epochs=epochs),
        partial(checks.exactly_one, delta=delta, epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        partial(options.at_most, options.MOST_RECORDS, size=size, batch_size=batch_size),
        partial(options.check_plot, plot),
    )
    if expected_batch_size is not None:
        assert size is not None
        sampling_rate = expected_batch_size / size
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs / (sampling_rate or _share(batch_size, size))))
    options.at_most(options.MOST_STEPS, steps=steps)
    event: PoissonGaussian | BandedGaussian | FixedSizeGaussian | GroupPrivacy
    if sampling_rate is None:
        assert batch_size is not None
        assert size is not None
        event = FixedSizeGaussian(batch_size, size, noise_multiplier)
    elif bands is not None:
        event = BandedGaussian(sampling_rate, noise_multiplier, bands)
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


def _share(batch_size: int | None, size: int | None) -> float:
    """The part of the records in a batch of a fixed size."""
    assert batch_size is not None
    assert size is not None
    return batch_size / size


def _check_batches(batch_size: int | None, expected_batch_size: float | None, size: int | None) -> None:
    if batch_size is None and expected_batch_size is None and size is None:
        return
    if size is None:
        raise ValueError("batch_size and expected_batch_size need size, the number of records in the data set")
    checks.count(size=size)
    if expected_batch_size is not None:
        checks.positive(expected_batch_size=expected_batch_size)
        if expected_batch_size > size:
            raise ValueError(f"expected a batch of at most all {size} records, got {expected_batch_size=:g}")
    elif batch_size is not None:
        FixedSizeGaussian(batch_size, size, noise_multiplier=1.0)  # checks its arguments
    else:
        raise ValueError("size needs batch_size or expected_batch_size")


def _check_bands(batch_size: int | None, group_size: int, bands: int | None) -> None:
    if bands is not None:
        checks.count(bands=bands)
        if batch_size is not None or group_size > 1:
            raise ValueError("bands are for Poisson batches of records; leave batch_size and group_size out, or bands")


def _check_group(batch_size: int | None, group_size: int) -> None:
    if batch_size is not None and group_size > 1:
        raise ValueError("a group_size above 1 needs a sampling_rate; batches of a fixed size are not supported")
