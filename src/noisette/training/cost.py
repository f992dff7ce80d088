"""The run of a recipe: how many steps the budget allows, and the privacy cost along the way."""

from __future__ import annotations

from noisette.accounting import Ledger, PldAccountant, epsilon_curve, steps_for
from noisette.accounting.calibrate import SEE_PLAN, schedule
from noisette.accounting.filters import RenyiOdometer, accountant_beside
from noisette.ranks import AnyRanks
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize
from noisette.training.build import TrainingSetup
from noisette.training.recipe import ACCOUNTANTS, Recipe


def length(
    recipe: Recipe, size: int, noise_multiplier: float | None, ledger: Ledger, declaration: str = ""
) -> tuple[float, int]:
    """Sampling rate and steps of the recipe's epochs; fewer steps if the noise is given and the budget allows fewer.

    Fewer only with Poisson batches of records: with others a run that exceeds the budget is refused.
    """
    privacy, training = recipe.privacy, recipe.training
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    if noise_multiplier is None or recipe.data.users is not None or training.batches != "poisson":
        return sampling_rate, steps
    affordable = steps_for(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        accountant=accountant_beside(
            ledger.declarations,
            ACCOUNTANTS[privacy.accountant],
            declaration=declaration,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        ),
        prior_events=ledger.events,
    )
    if affordable == 0:
        raise ValueError(
            f"epsilon={privacy.epsilon:g} at delta={privacy.delta:g} does not allow one step of rate "
            f"{sampling_rate:.4g} with noise_multiplier={noise_multiplier:.4g}"
            + (f" beside {len(ledger.events)} other releases" if ledger.events else "")
            + f"; raise epsilon or noise_multiplier: {SEE_PLAN}"
        )
    return sampling_rate, min(steps, affordable)


def start_run(
    recipe: Recipe, setup: TrainingSetup, size: int, ledger: Ledger, ranks: AnyRanks, declaration: str
) -> PrivateRun:
    """The private run of a recipe on data of this declared size, before its first step."""
    privacy, noise = recipe.privacy, setup.noise_multiplier
    _, steps = length(recipe, size, noise, ledger, declaration)
    return privatize(
        setup.bound,
        setup.optimizer,
        setup.examples,
        expected_batch_size=recipe.training.batch_size,
        public_size=size,
        steps=steps,
        epsilon=privacy.epsilon,
        noise_multiplier=noise,
        delta=privacy.delta,
        accountant=ACCOUNTANTS[privacy.accountant],
        allow_large_delta=privacy.allow_large_delta,
        ledger=ledger,
        sampling=setup.sampling,
        users=setup.users,
        ranks=ranks,
        declaration=declaration,
    )


def costs(run: PrivateRun, recipe: Recipe, steps: list[int]) -> dict[int, float]:
    """Epsilon spent after each of these steps; never more than the budget, which holds for the whole run."""
    accountant = None if isinstance(run.accountant, PldAccountant) else run.accountant
    epsilons = epsilon_curve(
        run.event,
        checkpoints=steps,
        delta=recipe.privacy.delta,
        accountant=RenyiOdometer() if run.is_beside_others else accountant,
        prior_events=run.terms.beside(run.ledger),
    )
    return {step: min(epsilon, recipe.privacy.epsilon) for step, epsilon in zip(steps, epsilons, strict=True)}
