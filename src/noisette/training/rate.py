"""The learning rate of a recipe that gives none."""

from __future__ import annotations

from dataclasses import replace

from noisette.run.private import PrivateRun
from noisette.training.defaults import NETWORK_REACH, learning_rate_for
from noisette.training.recipe import Recipe

_OF_COSINE = 0.5  # the mean of half a cosine from one to zero


def with_rate(recipe: Recipe, run: PrivateRun) -> Recipe:
    """The recipe with a learning rate: its own, or the one that the rule gives for this run.

    The rule takes the noise, the declared size and the number of weights, all of them public, so a resumed run gets the
    same rate.
    """
    training = recipe.training
    if training.lr is not None:
        return recipe
    constant = learning_rate_for(
        dimensions=sum(p.numel() for group in run.optimizer.param_groups for p in group["params"] if p.requires_grad),
        noise_multiplier=run.noise_multiplier,
        expected_batch_size=training.batch_size,
        steps=run.steps,
        max_grad_norm=recipe.privacy.max_grad_norm,
        reach=NETWORK_REACH,
        momentum=training.momentum,
    )
    rate = constant / _OF_COSINE if training.cosine and training.lr_end is None else constant
    return replace(recipe, training=replace(training, lr=rate))
