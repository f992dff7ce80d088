"""The outcome of a run: its model, and privacy cost and test accuracy along the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from noisette.data import DataSet
from noisette.run.private import PrivateRun
from noisette.training.predictions import ClassFigures, NumberFigures
from noisette.training.recipe import Recipe


@dataclass(frozen=True)
class Point:
    """The privacy cost of a run after a step, and its accuracy on the test examples if there are any.

    ``step`` counts the steps that epsilon covers, whether they moved the weights or were lost when a process crashed.
    """

    step: int
    epsilon: float
    test_accuracy: float | None
    test_rmse: float | None = None  # of a predicted number instead, in its unit


@dataclass
class Outcome:
    """A finished or interrupted run."""

    recipe: Recipe
    data: DataSet
    model: nn.Module
    run: PrivateRun
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # for calibration, training and evaluation
    interrupted: bool = False
    resumed: int = 0  # how many times
    public_weights: str = ""  # the SHA-256 of the file of the first weights, as it was read; "" if they were random
    test: ClassFigures | NumberFigures | None = None  # of the model on its test examples
    certified: list[tuple[float, float]] = field(default_factory=list)  # radii, and the certified test accuracy at each

    @property
    def parameters(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.run.bound.parameters.values())

    @property
    def epsilon(self) -> float:
        """The privacy cost of the whole run at the recipe's delta."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[PrivateRun, Point], None]
