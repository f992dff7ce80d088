"""The learning rate of each step, by the recipe."""

from __future__ import annotations

import math

from noisette.training.recipe import TrainingSection


def learning_rate(settings: TrainingSection, *, spent: int, steps: int, sampling_rate: float) -> float:
    """The learning rate of the step after ``spent`` of ``steps``.

    It is constant, or on a line to another rate, or on half a cosine to zero; over the share ``warmup`` of the steps it
    rises on a line to that. It follows the steps that epsilon covers, so that a resumed run that lost some still ends
    at the planned rate.

    >>> settings = TrainingSection(lr=1.0, cosine=False, warmup=0.5)
    >>> [learning_rate(settings, spent=n, steps=8, sampling_rate=0.1) for n in (0, 1, 3, 4, 7)]
    [0.25, 0.5, 1.0, 1.0, 1.0]
    """
    assert settings.lr is not None, "a run resolves it before its first step"
    rate = settings.lr
    if settings.lr_end is not None:
        moved = min(1.0, spent / round(settings.lr_epochs / sampling_rate))
        rate += (settings.lr_end - settings.lr) * moved
    elif settings.cosine:
        rate *= (1 + math.cos(math.pi * spent / steps)) / 2
    rising = settings.warmup * steps
    return rate * (spent + 1) / rising if spent + 1 < rising else rate
