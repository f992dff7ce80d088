"""A small run that stands for a large one: the same noise on each mean gradient, at a larger epsilon."""

from __future__ import annotations

from dataclasses import replace

from noisette import errors as checks
from noisette.accounting import epsilon_for, noise_multiplier_for
from noisette.accounting.calibrate import schedule
from noisette.clipping.registry import CLIPPING_RULES
from noisette.training.recipe import ACCOUNTANTS, Recipe

_ROOM = 1.001  # above the price, which the run computes again


def scaled_down(recipe: Recipe, factor: int, size: int) -> Recipe:
    """The recipe of a run with 1 / ``factor`` of the computation that trains about as the given one does.

    Batch, passes and noise multiplier are divided by the factor, so that the number of steps, and the noise on the mean
    gradient of a batch, stay the same; only the sampling error of a batch grows. Use it to choose settings such as
    learning rate, clipping norm or model; then train by the recipe itself.

    Args:
        recipe: that of the large run.
        factor: by how much the run becomes smaller, at least 2; a divisor of the batch size.
        size: the declared number of training records.

    Returns:
        A recipe whose budget ``epsilon`` is what the small run itself costs, which is **larger** than that of the large
        one, often by far: each record has less noise to hide in. A run by it charges and reports that epsilon.

    Guarantee: none is inherited. What is chosen by looking at small runs on private records costs the epsilon of each;
    choose on public records of the same kind where that is too much.
    Source: Sander, Stock & Sablayrolles 2023, "TAN without a burn: scaling laws of DP-SGD", section 4.

    Raises:
        ValueError: the factor does not divide the batch size, or the recipe has other batches than Poisson batches of
            records, a projection, clipping by layer, or is that of a small run already.
    """
    checks.count(factor=factor, size=size)
    training, privacy = recipe.training, recipe.privacy
    _check(recipe, factor)
    accountant = ACCOUNTANTS[privacy.accountant]
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    noise = privacy.noise_multiplier or noise_multiplier_for(
        epsilon=privacy.epsilon, delta=privacy.delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant
    )
    price = epsilon_for(
        delta=privacy.delta,
        sampling_rate=sampling_rate / factor,
        noise_multiplier=noise / factor,
        steps=steps,
        accountant=accountant,
    )
    return replace(
        recipe,
        privacy=replace(privacy, epsilon=price * _ROOM, noise_multiplier=noise / factor),
        training=replace(
            training,
            batch_size=training.batch_size // factor,
            epochs=training.epochs / factor,
            lr_epochs=training.lr_epochs / factor,
            simulates=factor,
        ),
    )


def _check(recipe: Recipe, factor: int) -> None:
    training, problems = recipe.training, []
    if factor < 2 or training.batch_size % factor:
        problems.append(f"the factor must be 2 or more and divide batch_size={training.batch_size}, got {factor}")
    if training.simulates > 1:
        problems.append(f"the recipe simulates another one already, {training.simulates} times as large")
    if training.batches != "poisson" or recipe.data.users is not None:
        problems.append("only Poisson batches of records are simulated")
    if recipe.projection.components:
        problems.append("private principal components are not made smaller; leave the projection out")
    if not recipe.lipschitz.used and len(_groups(recipe)) > 1:
        problems.append(f"clipping = {recipe.privacy.clipping!r} has several norms; use one")
    if problems:
        raise ValueError("this recipe cannot be simulated at a smaller scale:\n  " + "\n  ".join(problems))


def _groups(recipe: Recipe) -> list[object]:
    """The groups that the clipping rule makes of two layers."""
    return list(CLIPPING_RULES[recipe.privacy.clipping].resolve()(1.0).groups(["a.weight", "b.weight"]))
