"""``noisette account`` and ``noisette calibrate``: what a run costs, or the parameter that a budget leaves open."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import BandedGaussian, Event, GroupPrivacy, Neighbouring, PldAccountant, PoissonGaussian
from noisette.accounting.calibrate import check_ranges, noise_multiplier_for, schedule, steps_for
from noisette.accounting.events import RepeatAndSelect, UserLevel
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.options import plain_errors


def json_number(value: float) -> float | str:
    """The value, or a string for one that is not a JSON number; ``float()`` reads both."""
    return value if math.isfinite(value) else str(value)


def rounded_up(value: float, digits: int = 5) -> str:
    """The value in so many digits, never smaller: neither a privacy cost nor a noise may look smaller than it is.

    >>> rounded_up(0.94692), rounded_up(1e-5), rounded_up(2.000001)
    ('0.94692', '1e-05', '2.0001')
    """
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"


def rounded_down(value: float) -> str:
    """The value in five digits, never larger: a parameter that keeps a budget must keep it as printed.

    >>> rounded_down(0.010518999)
    '0.010518'
    """
    return rounded_up(-value).removeprefix("-")


# The parameters of events in words, rounded in the direction of a larger privacy cost.
_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "sampling_rate": ("rate {}", rounded_up),
    "bins": ("one of {} batches", "{:,}".format),
    "bands": ("rounds of {} steps", "{:,}".format),
    "batch_size": ("batches of {}", "{:,}".format),
    "size": ("{} records", "{:,}".format),
    "largest_batch": ("batches of at most {}", "{:,}".format),
    "most_records": ("at most {} records", "{:,}".format),
    "noise_multiplier": ("noise {}", rounded_down),
    "rho": ("rho {}", rounded_up),
    "epsilon": ("epsilon {}", rounded_up),
    "delta": ("delta {}", rounded_up),
}


def in_words(event: Event) -> str:
    """The mechanism and its parameters in five digits, rounded in the direction of a larger privacy cost.

    >>> in_words(GroupPrivacy(PoissonGaussian(0.01, 4.0), records=3))
    'Poisson Gaussian, rate 0.01, noise 4, for a group of 3'
    """
    match event:
        case GroupPrivacy():
            return f"{in_words(event.event)}, for a group of {event.records:,}"
        case UserLevel():
            return f"{in_words(event.event)}, for a user of up to {event.records:,}"
        case RepeatAndSelect():
            run = " and ".join(f"{times:,} × {in_words(of_one)}" for of_one, times in event.run)
            return f"best of about {rounded_up(event.mean)} runs (shape {event.shape:g}) of {run}"
        case _:
            given = event.parameters()
            words = [text.format(form(given[name])) for name, (text, form) in _WORDS.items() if name in given]
            if event.neighbouring != Neighbouring.ADD_OR_REMOVE_ONE:
                words.append(event.relation)
            named = given.get("tool") or ", ".join(name for name, _ in given.get("parts", ()))
            return ", ".join([event.mechanism, *words]) + (f" ({named})" if named else "")


_SOLVERS: dict[str, Callable[..., float]] = {"noise_multiplier": noise_multiplier_for, "steps": steps_for}


@plain_errors()
def account(
    *,
    epsilon: Annotated[float | None, options.EPSILON] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "--noise",
            help="Standard deviation of the noise, in units of the sensitivity to one record: above 0.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps, empty batches included: at least 1.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the size, instead of --steps: above 0.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="Probability that a record is in a batch.")] = None,
    expected_batch_size: Annotated[
        float | None, typer.Option(help="Expected records in a batch, instead of a sampling rate; needs --size.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Records in the data set, for --expected-batch-size.")] = None,
    group_size: Annotated[
        int, typer.Option(max=100_000, help="Records that one person may have: the guarantee covers all of them.")
    ] = 1,
    bands: Annotated[int | None, typer.Option(help="Steps over which noise is correlated: cyclic batches.")] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
) -> None:
    """Compute the privacy cost of a training run, or the parameter that a budget leaves open.

    Give the sampling rate and three of epsilon, delta, noise and steps. The result is the least epsilon, delta or
    noise, or the most steps. `account` and `calibrate` are one command.

    `noisette account --size 60000 --expected-batch-size 600 --epochs 60 --noise 1.3 --delta 1e-5`

    `noisette calibrate --epsilon 3 --delta 1e-5 --sampling-rate 0.01 --steps 6000`
    """
    rates = {"sampling_rate": sampling_rate, "expected_batch_size": expected_batch_size}
    lengths, batch = {"steps": steps, "epochs": epochs}, expected_batch_size
    budget = {"epsilon": epsilon, "delta": delta}
    given = {"noise_multiplier": noise_multiplier, "steps": epochs if steps is None else steps}
    given |= {"sampling_rate": batch if sampling_rate is None else sampling_rate} | budget
    missing = [name for name, value in given.items() if value is None]
    checks.all_of(
        partial(_check_one_missing, missing, list(given), plain=bands is None and group_size == 1),
        *(partial(checks.exactly_one, **pair) for pair in (rates, lengths) if None not in pair.values()),
        partial(check_ranges, **rates, **lengths, **budget, noise_multiplier=noise_multiplier, size=size),
        partial(check_ranges, group_size=group_size, bands=bands),
        partial(_check_batches, batch, size, group_size, bands),
        partial(options.at_most, options.MOST_RECORDS, size=size),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
    )
    [found] = missing
    if batch is not None:
        sampling_rate, _ = schedule(batch, None, 1, size, None)
    if epochs is not None:
        _, steps = schedule(0, sampling_rate, None, None, epochs)
        options.at_most(options.MOST_STEPS, steps=steps)
    run: dict[str, Any] = {"noise_multiplier": noise_multiplier, "steps": steps, "sampling_rate": sampling_rate}
    if found in _SOLVERS:
        del run[found]
        run[found] = _SOLVERS[found](**run, epsilon=epsilon, delta=delta, accountant=ACCOUNTANTS[accountant])
    if run["steps"] == 0:
        raise ValueError(
            f"by the {accountant} accountant one step costs more than epsilon={epsilon} at delta={delta}; give more "
            "noise, a smaller sampling rate or a larger budget"
        )
    batches = (run["sampling_rate"], run["noise_multiplier"])
    event = PoissonGaussian(*batches) if bands is None else BandedGaussian(*batches, bands)
    if group_size > 1:
        event = GroupPrivacy(PoissonGaussian(*batches), group_size)
    curve = ACCOUNTANTS[accountant].compose({event: run["steps"]})
    if delta is None:
        assert epsilon is not None, "one is missing"
        delta = curve.delta(epsilon=epsilon)
    else:
        epsilon = curve.epsilon(delta=delta)
    if as_json:
        of_event = (event.event if isinstance(event, GroupPrivacy) else event).parameters()
        facts = {"found": found, "epsilon": json_number(epsilon), "delta": delta, **of_event, "steps": run["steps"]}
        facts |= {"accountant": accountant, "neighbouring": event.relation, "sampling": event.sampling}
        typer.echo(json.dumps(facts))
        return
    rows = {
        found: "",  # in the first line
        "epsilon": rounded_up(epsilon),
        "delta": rounded_up(delta),
        "noise_multiplier": rounded_up(event.noise_multiplier),
        "steps": f"{run['steps']:,}",
        "sampling_rate": f"{event.sampling_rate:.6g}",
        "sampling": event.sampling,
        "neighbouring": event.relation,
        "accountant": f"{accountant} ({ACCOUNTANTS[accountant].description})",
    }
    if isinstance(event, BandedGaussian):
        rows["bands"] = f"{event.bands:,}: a round that was begun counts as a whole"
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, text in rows.items():
        table.add_row(name.replace("_", " "), text, style="bold" if name == found else None)
    Console(highlight=False, soft_wrap=True).print(table)


def _check_one_missing(missing: list[str], names: list[str], *, plain: bool) -> None:
    if not missing:
        raise ValueError(f"all of {', '.join(names)} are given; leave out the one to solve for")
    if len(missing) > 1:
        raise ValueError(f"{', '.join(missing)} are missing; give all of them but the one to solve for")
    if "sampling_rate" in missing:
        raise ValueError("the sampling rate is not solved for; give it, or try several with noisette plan")
    if not plain and missing[0] in _SOLVERS:
        raise ValueError("noise and steps are found for Poisson batches of records; give epsilon or delta alone")


def _check_batches(batch: float | None, size: int | None, group_size: int, bands: int | None) -> None:
    if (batch is None) != (size is None):
        raise ValueError("expected_batch_size and size, the number of records in the data set, belong together")
    if batch is not None and size is not None and batch > size:
        raise ValueError(f"expected a batch of at most all {size} records, got {batch:g}")
    if bands is not None and group_size > 1:
        raise ValueError("bands are for single records; leave group_size out, or bands")
