"""``noisette calibrate``: solve for one of the five parameters of a run, given the other four."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from noisette import errors as checks
from noisette.accounting import (
    PldAccountant,
    PoissonGaussian,
    delta_for,
    epsilon_for,
    noise_multiplier_for,
    sampling_rate_for,
    steps_for,
)
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.errors import plain_errors
from noisette.cli.privacy_cost import PrivacyCost

_SOLVERS: dict[str, Callable[..., float]] = {
    "noise_multiplier": noise_multiplier_for,
    "steps": steps_for,
    "sampling_rate": sampling_rate_for,
    "epsilon": epsilon_for,
    "delta": delta_for,
}


@plain_errors()
def calibrate(
    *,
    epsilon: Annotated[float | None, options.EPSILON] = None,
    delta: Annotated[float | None, options.DELTA] = None,
    sampling_rate: options.SamplingRate = None,
    noise_multiplier: Annotated[float | None, options.NOISE_MULTIPLIER] = None,
    steps: Annotated[int | None, options.STEPS] = None,
    accountant: options.AccountantName = PldAccountant.name,
    as_json: options.AsJson = False,
    plot: options.PlotFile = None,
) -> None:
    """Solve for the missing parameter: give four of epsilon, delta, sampling rate, noise multiplier and steps.

    The result is the least noise, the most steps or the largest sampling rate that keep the budget, or the least
    epsilon or delta.
    Example: noisette calibrate --epsilon 3 --delta 1e-5 --sampling-rate 0.01 --steps 6000
    """
    given: dict[str, float | None] = {
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "epsilon": epsilon,
        "delta": delta,
    }
    checks.all_of(
        partial(_check_one_missing, given),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        lambda: delta is None or checks.open_fraction(delta=delta),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        lambda: noise_multiplier is None or checks.positive(noise_multiplier=noise_multiplier),
        lambda: steps is None or checks.count(steps=steps),
        partial(_check_keeps_budgets, accountant),
        partial(options.at_most, options.MOST_STEPS, steps=steps),
        partial(options.check_plot, plot),
    )
    _solve(given, accountant).show(as_json=as_json, plot=plot, command="calibrate")


def _check_one_missing(given: Mapping[str, float | None]) -> None:
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        raise ValueError(f"all of {', '.join(given)} are given; leave out the one to solve for")
    if len(missing) > 1:
        raise ValueError(f"{', '.join(missing)} are missing; give all of them but the one to solve for")


def _check_keeps_budgets(accountant: str) -> None:
    if not ACCOUNTANTS[accountant].upper_bound:
        raise ValueError(
            f"{accountant} is no upper bound: its result keeps no budget; choose another accountant, or compute its "
            "epsilon with noisette account"
        )


def _solve(given: Mapping[str, float | None], name: str) -> PrivacyCost:
    """The run with its missing parameter, and its privacy cost: never above the budget."""
    accountant = ACCOUNTANTS[name]
    missing = next(parameter for parameter, value in given.items() if value is None)
    known = {parameter: value for parameter, value in given.items() if value is not None}
    run = known | {missing: _SOLVERS[missing](**known, accountant=accountant)}
    steps = int(run["steps"])
    if steps == 0:
        raise ValueError(
            f"by the {name} accountant one step costs more than epsilon={run['epsilon']} at delta="
            f"{run['delta']}; give more noise, a smaller sampling rate or a larger budget"
        )
    event = PoissonGaussian(run["sampling_rate"], run["noise_multiplier"])
    if missing in ("epsilon", "delta"):
        return PrivacyCost(event, steps, name, run["epsilon"], run["delta"], missing)
    epsilon = accountant.compose({event: steps}).epsilon(delta=run["delta"])
    return PrivacyCost(event, steps, name, epsilon, run["delta"], missing, budget=run["epsilon"])
