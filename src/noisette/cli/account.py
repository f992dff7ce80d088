"""``noisette account``, ``calibrate`` and ``plan``: what a run costs, and the parameters that a budget leaves open."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from decimal import ROUND_CEILING, Context
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import Event, Neighbouring, PldAccountant, calibrate, noise_multiplier_for, steps_for
from noisette.accounting.events import BandedGaussian, GroupPrivacy, PoissonGaussian, RepeatAndSelect, UserLevel
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.options import INTERRUPTED, option, plain_errors


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
    """The value in five digits, never larger: a parameter that keeps a budget must keep it as printed."""
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


_NOISE = "Standard deviation of the noise, in units of the sensitivity to one record: above 0."
_BATCH = "Expected records in a batch, instead of a sampling rate; needs --size."
_GROUP = "Records that one person may have: the guarantee covers all of them."
_SOLVERS: dict[str, Callable[..., float]] = {"noise_multiplier": noise_multiplier_for, "steps": steps_for}


@plain_errors()
def account(
    *,
    epsilon: Annotated[float | None, options.EPSILON] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    noise_multiplier: Annotated[float | None, option("F", _NOISE, None, "--noise-multiplier", "--noise")] = None,
    steps: Annotated[int | None, option("N", "Number of steps, empty batches included: at least 1.")] = None,
    epochs: Annotated[float | None, option("F", "Passes over the size, instead of --steps: above 0.")] = None,
    sampling_rate: Annotated[float | None, option("F", "Probability that a record is in a batch.")] = None,
    expected_batch_size: Annotated[float | None, option("F", _BATCH)] = None,
    size: Annotated[int | None, option("N", "Records in the data set, for --expected-batch-size.")] = None,
    group_size: Annotated[int, option("N", _GROUP)] = 1,
    bands: Annotated[int | None, option("N", "Steps over which noise is correlated: cyclic batches.")] = None,
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
        partial(calibrate.check_ranges, **rates, **lengths, **budget, noise_multiplier=noise_multiplier, size=size),
        partial(calibrate.check_ranges, group_size=group_size, bands=bands),
        partial(_check_batches, batch, size, group_size, bands),
        partial(options.at_most, options.MOST_RECORDS, size=size),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
        partial(options.at_most, 100_000, group_size=group_size),
        partial(options.check_accountant, accountant),
    )
    [found] = missing
    if batch is not None:
        sampling_rate, _ = calibrate.schedule(batch, None, 1, size, None)
    if epochs is not None:
        _, steps = calibrate.schedule(0, sampling_rate, None, None, epochs)
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
    if isinstance(batch, int | float) and isinstance(size, int) and batch > size:
        raise ValueError(f"a batch of {batch:g} exceeds the size of {size} records; give a smaller one")
    if bands is not None and group_size != 1:
        raise ValueError("bands are for single records; leave group_size out, or bands")


_DELTA = "Probability with which epsilon may fail: above 0, below 1 / size."
_rounded = partial(rounded_up, digits=4)  # the accuracy of these epsilons
_USUAL = "up to four, from √size upwards"


@plain_errors()
def plan(
    *,
    size: Annotated[Any, option("N", "Public number of training records, about.", "must be given")] = None,
    epsilon: Annotated[Any, option("F", "Privacy budget, in nats: above 0.", "must be given")] = None,
    delta: Annotated[Any, option("F", _DELTA, "must be given")] = None,
    batch_sizes: Annotated[str | None, option("N,N,..", "Expected batch sizes.", _USUAL)] = None,
    epochs: Annotated[str, option("F,F,..", "Passes over the declared size.")] = "10,20,40,80",
    as_json: options.AsJson = False,
) -> None:
    """Recommend a batch size, epochs and noise for a budget, beside the noise and signal of all others.

    It is the setting with the fewest epochs among those with nearly the largest total signal to noise. For settings
    that no number recommends, such as learning rates, `noisette search` has one privacy cost for several runs.
    Example: noisette plan --size 60000 --epsilon 3 --delta 1e-5
    """
    budget = {"size": size, "epsilon": epsilon, "delta": delta}
    most = size if isinstance(size, int) and size > 0 else math.inf
    batch_sizes = _usual_batch_sizes(most) if batch_sizes is None else batch_sizes
    *_, sizes, passes = checks.all_of(
        partial(_check_budget, budget, most),
        partial(options.at_most, options.MOST_RECORDS, size=size),
        partial(calibrate.check_ranges, **budget),
        partial(options.whole_numbers, "batch-sizes", batch_sizes, "256,1024", most=most),
        partial(options.numbers, "epochs", epochs, "1,2.5,10", *options.ABOVE_0),
    )
    sizes, passes = sorted(set(sizes)), sorted(set(passes))
    options.at_most(options.MOST_STEPS, steps=max(passes) * size / sizes[0])
    try:
        searches = calibrate.within_budget(size=size, epsilon=epsilon, delta=delta, batch_sizes=sizes, epochs=passes)
        terminal, number = Console(stderr=True), len(sizes) * len(passes)
        settings = list(track(searches, "noise for the budget", number, console=terminal, transient=True))
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    chosen = calibrate.recommended(settings)
    if as_json:
        facts: dict[str, Any] = {"size": size, "epsilon": epsilon, "delta": delta, "accountant": PldAccountant.name}
        facts["neighbouring"] = str(Neighbouring.ADD_OR_REMOVE_ONE)
        facts["within_budget"] = [asdict(setting) | {"signal": setting.signal} for setting in settings]
        typer.echo(json.dumps(facts | {"chosen": asdict(chosen)}))
    else:
        _print_plan(settings, chosen, size, epsilon)


def _check_budget(budget: Mapping[str, float | None], size: float) -> None:
    if missing := [f"--{name}" for name, number in budget.items() if number is None]:
        raise ValueError(f"{' and '.join(missing)} must be given")
    if isinstance(delta := budget["delta"], int | float) and 1 / size <= delta < 1 and size < math.inf:
        why = f"({1 / size:.2g}): releasing one record in the clear would satisfy it; choose a smaller delta"
        raise ValueError(f"delta={delta:g} is not below one over the declared size {why}")


def _usual_batch_sizes(size: float) -> str:
    """Powers of two from about the square root of the size, each four times the previous one."""
    least = 0 if size == math.inf else round(math.log2(size) / 2)
    return ",".join(str(2**k) for k in range(least, least + 8, 2) if 2**k <= size) or "1"


def _print_plan(settings: Sequence[calibrate.Setting], chosen: calibrate.Setting, size: int, epsilon: float) -> None:
    rows = {f"{size:,}": list(row) for size, row in groupby(settings, key=lambda setting: setting.batch_size)}
    most = max(setting.signal for setting in settings)
    epochs = list(dict.fromkeys(f"{setting.epochs:g} epochs" for setting in settings))
    why = f"fewest epochs with {calibrate.NEARLY:.0%}"
    recommendation = [
        ("batch size", f"{chosen.batch_size:,} expected; microbatches bound the memory"),
        ("epochs", f"{chosen.epochs:g}"),
        ("steps", f"{chosen.steps:,}"),
        ("noise multiplier", _rounded(chosen.noise_multiplier)),
        ("time", f"that of {chosen.epochs * size:.3g} gradients"),
        ("why", f"{why} of the largest signal of all with {calibrate.LEAST_STEPS} steps or more"),
        ("signal", f"{chosen.signal / most:.0%} of the largest in the table"),
    ]
    signal = [(name, *(f"{s.signal / most:.0%}" for s in row)) for name, row in rows.items()]
    noises = [
        (name, f"{row[0].sampling_rate:.3g}", *(_rounded(s.noise_multiplier) for s in row))
        for name, row in rows.items()
    ]
    signal_title = "Share of the largest total signal to noise, √steps × sampling rate / noise"
    console = Console(highlight=False, soft_wrap=True)
    for caption, headings, cells in (
        (f"Recommended for ε ≤ {epsilon:g}", (), recommendation),
        (signal_title, ("batch size", *epochs), signal),
        (f"Least noise multiplier that keeps ε ≤ {epsilon:g}", ("batch size", "sampling rate", *epochs), noises),
    ):
        table = Table(title=caption, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for k, heading in enumerate(headings):
            table.add_column(heading, justify="right" if k else "left", header_style="")
        for row in cells:
            table.add_row(*row)
        console.print(table)
        console.print()
