"""Finished and planned runs of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import run_file
from papers.abadi_2016.cifar import Cifar
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.setting import DELTA, Plan, Setting
from papers.recipe_run import carry_out

if TYPE_CHECKING:
    from noisette.data import DataSet
    from papers.paper import Tell

_POINTS = 100  # accuracies measured along a run
_SETTINGS: dict[str, type[Setting]] = {study.data: study for study in (Mnist, Cifar)}


@dataclass(frozen=True)
class Run:
    """A finished run: its setting, and its accuracy on the test images along the run.

    Guarantee: all values are public; they depend on the training images only through the noised gradients.
    """

    setting: Setting
    seed: int
    steps: int
    seconds: float
    points: tuple[tuple[int, float], ...]  # (step, test accuracy)

    def serves(self, plan: Plan) -> bool:
        """Tell whether this run has the plan's setting and seed and its length: a budget only ends a run."""
        return (self.setting, self.seed) == (plan.setting, plan.seed) and self.lasts(plan.steps)

    def lasts(self, steps: int) -> bool:
        """Tell whether it has so many steps, up to 0.2 %, by which an accountant may since have become tighter."""
        return self.steps >= 0.998 * steps

    def accuracy_within(self, steps: int) -> float | None:
        """Return the latest test accuracy within so many steps."""
        return max(((step, accuracy) for step, accuracy in self.points if step <= steps), default=(0, None))[1]


def read(path: Path) -> list[Run]:
    """Read the finished runs of a file, in order; none if there is no file.

    Raises:
        ValueError: a line is not a run.
    """
    return run_file.read(path, _parsed)


def missing(plans: Sequence[Plan], done: Sequence[Run]) -> list[Plan]:
    """Return the plans without a finished run, the shortest first, each once."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: -plan.steps):
        twin = any((plan.setting, plan.seed) == (other.setting, other.seed) for other in kept)
        if not twin and not any(run.serves(plan) for run in done):
            kept.append(plan)
    return sorted(kept, key=lambda plan: plan.seconds)


@dataclass(frozen=True)
class PlannedRun:
    """A plan as a job of the command."""

    plan: Plan

    @property
    def seconds(self) -> float:
        """Approximate time on one processor core."""
        return self.plan.seconds

    @property
    def sets(self) -> tuple[str, ...]:
        """The data set of the run."""
        return (self.plan.setting.data,)

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Carry out the run and add its line to the file."""
        make(self.plan, data[self.plan.setting.data], runs, tell)


def make(plan: Plan, data: DataSet, path: Path, tell: Tell) -> None:
    """Carry out a run and add its line to the file; ``tell`` is called at each step with the latest test accuracy.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; no line is written.
    """
    known = {
        "data": data.name,
        "setting": asdict(plan.setting),
        "seed": plan.seed,
        "budget": {"epsilon": plan.epsilon, "delta": DELTA, "accountant": plan.accountant},
    }
    outcome = carry_out(plan.recipe, data, None, tell, points=_POINTS)
    run_file.append(path, known | outcome | {"made_with": run_file.made_with(plan.weights)})


def _parsed(facts: Mapping[str, Any]) -> Run:
    return Run(
        setting=_SETTINGS[facts["data"]](**facts["setting"]),
        seed=facts["seed"],
        steps=facts["steps"],
        seconds=facts["seconds"],
        points=tuple(_points(facts["points"])),
    )


def _points(pairs: Sequence[Sequence[Any]]) -> Iterator[tuple[int, float]]:
    for step, accuracy in pairs:
        yield int(step), float(accuracy)
