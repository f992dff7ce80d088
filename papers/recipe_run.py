"""Train by a recipe for a paper, and keep the results that its pages need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.training.loop import Outcome
    from noisette.training.recipe import Recipe
    from papers.paper import Tell


def carry_out(
    recipe: Recipe,
    data: DataSet,
    public: DataSet | None,
    tell: Tell,
    *,
    points: int,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> dict[str, Any]:
    """Train by the recipe and return steps, epsilon, noise multiplier, time, and the test accuracy at ``points`` steps.

    ``on_outcome`` is called with the outcome of the run.

    Guarantee: that of the recipe; the result depends on the training records only through the noised gradients.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    import papers.networks  # noqa: F401 - recipes name them
    from noisette.training.loop import train

    outcome = train(
        recipe,
        data,
        public=public,
        ledger_path=None,
        on_step=lambda run, point: tell(point.step / run.steps, point.test_accuracy),
        points=points,
    )
    on_outcome(outcome)
    return {
        "steps": outcome.run.steps_taken,
        "epsilon": outcome.epsilon,
        "noise_multiplier": outcome.run.noise_multiplier,
        "seconds": round(outcome.seconds, 1),
        "points": [[point.step, point.test_accuracy] for point in outcome.points],
    }
