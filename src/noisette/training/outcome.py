"""What is known of a run: its course, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from noisette.data import DataSet
from noisette.run.dp_sgd import DpSgdRun
from noisette.run.private import PrivateRun
from noisette.training.build import layers_of
from noisette.training.recipe import Recipe


@dataclass(frozen=True)
class Point:
    """What may be known of a run after a step: its cost, and its accuracy on the public test set if there is one.

    ``step`` counts those that are paid for, whether they moved the weights or were lost with a process that died.
    ``epsilon`` is ``None`` where the run has no claim.
    """

    step: int
    epsilon: float | None
    test_accuracy: float | None


@dataclass
class Outcome:
    """A finished or interrupted run."""

    recipe: Recipe
    data: DataSet
    model: nn.Module
    run: DpSgdRun
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # of calibration, training and evaluation
    interrupted: bool = False
    resumed: int = 0  # how many times
    certified: list[tuple[float, float]] = field(default_factory=list)  # distances, and test accuracy certified there

    @property
    def parameters(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.run.bound.parameters.values())

    @property
    def layers(self) -> int:
        """How many layers are clipped on their own; 1 where all are clipped together."""
        return len(layers_of(self.run.bound.model)) if self.recipe.privacy.per_layer else 1

    @property
    def epsilon(self) -> float | None:
        """What the whole run cost at the recipe's delta; ``None`` where it has no claim."""
        return self.run.epsilon(delta=self.recipe.privacy.delta) if isinstance(self.run, PrivateRun) else None


Watch = Callable[[DpSgdRun, Point], None]
