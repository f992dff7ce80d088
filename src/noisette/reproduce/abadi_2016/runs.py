"""Runs that are finished, one JSON line each; a run is made once."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import noisette
from noisette import durable
from noisette.reproduce.abadi_2016.cifar import Cifar
from noisette.reproduce.abadi_2016.mnist import Mnist
from noisette.reproduce.abadi_2016.setting import DELTA, Plan, Setting

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.training import Point

_POINTS = 100  # accuracies along a run
_SETTINGS: dict[str, type[Setting]] = {study.data: study for study in (Mnist, Cifar)}


@dataclass(frozen=True)
class Run:
    """A finished run in public numbers: its setting, and its accuracy on the test images along the way.

    Guarantee: nothing here was computed from the training images but through the noise.
    """

    setting: Setting
    seed: int
    steps: int
    seconds: float
    points: tuple[tuple[int, float], ...]  # (step, test accuracy)

    def serves(self, plan: Plan) -> bool:
        """Whether this run is the plan's, or goes on where that ends: a budget only says when a run stops."""
        return (self.setting, self.seed) == (plan.setting, plan.seed) and self.steps >= plan.steps

    def accuracy_within(self, steps: int) -> float | None:
        """The latest test accuracy that was taken within so many steps."""
        return max(((step, accuracy) for step, accuracy in self.points if step <= steps), default=(0, None))[1]


def read(path: Path) -> list[Run]:
    """The finished runs of a file, in their order; none if there is no file.

    Raises:
        ValueError: a line is not a run.
    """
    if not path.exists():
        return []
    return [_parsed(line, path, number) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)]


def missing(plans: Sequence[Plan], done: Sequence[Run]) -> list[Plan]:
    """The plans that no finished run serves, the shortest first, each once."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: -plan.steps):
        twin = any((plan.setting, plan.seed) == (other.setting, other.seed) for other in kept)
        if not twin and not any(run.serves(plan) for run in done):
            kept.append(plan)
    return sorted(kept, key=lambda plan: plan.seconds)


def make(plan: Plan, data: DataSet, path: Path, *, on_step: Callable[[Point], None]) -> None:
    """Make a run and add its line to the file; ``on_step`` is told of each step with the latest test accuracy.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the run leaves no line.
    """
    from noisette.training import train

    outcome = train(plan.recipe, data, ledger_path=None, on_step=lambda run, point: on_step(point), points=_POINTS)
    if outcome.interrupted:
        raise KeyboardInterrupt
    line = {
        "data": data.name,
        "setting": asdict(plan.setting),
        "seed": plan.seed,
        "budget": {"epsilon": plan.epsilon, "delta": DELTA, "accountant": plan.accountant},
        "steps": outcome.run.steps_taken,
        "epsilon": outcome.epsilon,
        "noise_multiplier": outcome.run.noise_multiplier,
        "seconds": round(outcome.seconds, 1),
        "points": [[point.step, point.test_accuracy] for point in outcome.points],
        "made_with": _made_with(plan.weights),
    }
    older = path.read_bytes() if path.exists() else b""
    durable.write(path, older + json.dumps(line).encode() + b"\n")


def _made_with(weights: str | None) -> dict[str, Any]:
    import torch

    digest = hashlib.sha256(Path(weights).read_bytes()).hexdigest() if weights else None
    return {
        "public_weights": digest,
        "noisette": noisette.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def _parsed(line: str, path: Path, number: int) -> Run:
    try:
        facts = json.loads(line)
        return Run(
            setting=_SETTINGS[facts["data"]](**facts["setting"]),
            seed=facts["seed"],
            steps=facts["steps"],
            seconds=facts["seconds"],
            points=tuple(_points(facts["points"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"line {number} of {path} is not a finished run ({error}); remove it") from error


def _points(pairs: Sequence[Sequence[Any]]) -> Iterator[tuple[int, float]]:
    for step, accuracy in pairs:
        yield int(step), float(accuracy)
