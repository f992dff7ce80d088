"""``noisette account`` and ``noisette calibrate``: what a run costs, and how much noise a budget asks for."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisette import _check
from noisette.accounting import PoissonGaussian, noise_multiplier_for
from noisette.cli.accountants import ACCOUNTANTS, AccountantName
from noisette.cli.errors import plain_errors

SamplingRate = Annotated[
    float,
    typer.Option(help="Probability that a record is in one step's batch, as a fraction: above 0, at most 1."),
]
NoiseMultiplier = Annotated[
    float,
    typer.Option(help="Standard deviation of the noise, in units of the most one record can move the sum: above 0."),
]
Steps = Annotated[int, typer.Option(help="Number of steps, empty batches included: at least 1.")]
Epsilon = Annotated[float, typer.Option(help="Privacy budget, in nats: above 0.")]
Delta = Annotated[
    float,
    typer.Option(help="Probability with which the bound on epsilon may fail: above 0, below 1."),
]
AccountantChoice = Annotated[
    AccountantName,
    typer.Option("--accountant", help="What prices the steps. pld is the tightest; all three are upper bounds."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, with all digits.")]


@plain_errors()
def account(
    *,
    sampling_rate: SamplingRate,
    noise_multiplier: NoiseMultiplier,
    steps: Steps,
    delta: Delta,
    accountant: AccountantChoice = AccountantName.PLD,
    as_json: AsJson = False,
) -> None:
    """Say what a training run costs: its epsilon at a delta.

    Example: noisette account --sampling-rate 0.01 --noise-multiplier 1.3 --steps 6000 --delta 1e-5
    """
    _check.all_of(
        partial(_check.probability, sampling_rate=sampling_rate),
        partial(_check.positive, noise_multiplier=noise_multiplier),
        partial(_check.count, steps=steps),
        partial(_check.open_fraction, delta=delta),
    )
    _print_price(PoissonGaussian(sampling_rate, noise_multiplier), steps, delta, accountant, as_json=as_json)


@plain_errors()
def calibrate(
    *,
    epsilon: Epsilon,
    delta: Delta,
    sampling_rate: SamplingRate,
    steps: Steps,
    accountant: AccountantChoice = AccountantName.PLD,
    as_json: AsJson = False,
) -> None:
    """Find the noise that keeps a training run within a budget, and hardly more.

    Example: noisette calibrate --epsilon 3 --delta 1e-5 --sampling-rate 0.01 --steps 6000
    """
    _check.all_of(
        partial(_check.positive, epsilon=epsilon),
        partial(_check.open_fraction, delta=delta),
        partial(_check.probability, sampling_rate=sampling_rate),
        partial(_check.count, steps=steps),
    )
    noise_multiplier = noise_multiplier_for(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=sampling_rate,
        steps=steps,
        accountant=ACCOUNTANTS[accountant][0],
    )
    _print_price(PoissonGaussian(sampling_rate, noise_multiplier), steps, delta, accountant, as_json=as_json)


def _print_price(event: PoissonGaussian, steps: int, delta: float, name: AccountantName, *, as_json: bool) -> None:
    accountant, title = ACCOUNTANTS[name]
    epsilon = accountant.price({event: steps}).epsilon(delta=delta)
    if as_json:
        facts = {
            "epsilon": epsilon,
            "delta": delta,
            "sampling_rate": event.sampling_rate,
            "noise_multiplier": event.noise_multiplier,
            "steps": steps,
            "accountant": accountant.name,
            "neighbouring": event.neighbouring.value,
            "sampling": event.sampling,
        }
        typer.echo(json.dumps(facts))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("epsilon", f"[bold]{_rounded_up(epsilon)}[/bold]")
    table.add_row("delta", f"{delta:g}")
    table.add_row("noise multiplier", _rounded_up(event.noise_multiplier))
    table.add_row("steps", f"{steps:,}")
    table.add_row("sampling", f"{event.sampling}, each record with probability {event.sampling_rate:.6g}")
    table.add_row("neighbouring", event.neighbouring.value)
    table.add_row("accountant", f"{accountant.name} ({title})")
    Console(highlight=False).print(table)


def _rounded_up(value: float) -> str:
    """Five digits, never less than the value: neither a price nor a noise may look smaller than it is."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 4)
    return f"{math.ceil(value / unit) * unit:.5g}"
