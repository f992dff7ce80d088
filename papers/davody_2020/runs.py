"""Runs of the paper, finished and planned."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import run_file
from papers.davody_2020.private import Private
from papers.davody_2020.setting import NoisyWeights
from papers.grid import one_of_each_seed
from papers.recipe_run import carry_out

if TYPE_CHECKING:
    from noisette.data import DataSet
    from papers.paper import Tell

Setting = NoisyWeights | Private
_SETTINGS: dict[str, type[Setting]] = {setting.kind: setting for setting in (NoisyWeights, Private)}
_POINTS = 10  # test accuracies along a private run


@dataclass(frozen=True)
class Run:
    """A finished run: its setting, its accuracy on the test examples at its end, and accuracies along the way.

    Those of a run under weight noise are on held-out training examples after each epoch, those of a private run on test
    examples after some steps. ``epsilon`` is ``None`` where there is no guarantee.
    """

    setting: Setting
    seed: int
    seconds: float
    test_accuracy: float
    points: tuple[tuple[int, float], ...]
    epsilon: float | None
    noise_multiplier: float | None


def read(path: Path) -> list[Run]:
    """The finished runs of a file, in their order; none if there is no file.

    Raises:
        ValueError: a line is not a run.
    """
    return run_file.read(path, _parsed)


def _parsed(facts: Mapping[str, Any]) -> Run:
    return Run(
        setting=_SETTINGS[facts["kind"]](**facts["setting"]),
        seed=facts["seed"],
        seconds=facts["seconds"],
        test_accuracy=facts["test_accuracy"],
        points=tuple((int(place), float(accuracy)) for place, accuracy in facts["points"]),
        epsilon=facts.get("epsilon"),
        noise_multiplier=facts.get("noise_multiplier"),
    )


@dataclass(frozen=True)
class Cell:
    """A setting to be run with a seed; ``seconds`` is about how long that takes on one processor core."""

    setting: Setting
    seed: int
    seconds: float
    weights: str | None = None

    @property
    def sets(self) -> tuple[str, ...]:
        """The records, and the public examples if there are any."""
        public = self.setting.public if isinstance(self.setting, Private) else None
        return (self.setting.data, *([public] if public else []))

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Carry out the run and add its line to the file."""
        known = {"kind": self.setting.kind, "setting": asdict(self.setting), "seed": self.seed}
        facts = _trained(self.setting, self.seed, self.weights, data, tell)
        run_file.append(runs, known | facts | {"made_with": run_file.made_with(self.weights)})


def _trained(
    setting: Setting, seed: int, weights: str | None, data: Mapping[str, DataSet], tell: Tell
) -> dict[str, Any]:
    if isinstance(setting, NoisyWeights):
        from papers.davody_2020.weight_noise import train

        return train(setting, seed, data[setting.data], tell)
    records, public = data[setting.data], data[setting.public] if setting.public else None
    if setting.guaranteed:
        facts = carry_out(setting.recipe(seed, weights), records, public, tell, points=_POINTS)
    else:
        from papers.davody_2020 import non_private

        assert public is not None, "the mixture has public examples"
        facts = non_private.train(setting, seed, records, public, tell)
    return {"records": records.declared_size, "test_accuracy": facts["points"][-1][1]} | facts


@dataclass(frozen=True)
class Mean:
    """Accuracies of several seeds: mean and standard error, in per cent."""

    mean: float
    error: float | None  # None for one seed
    seeds: int

    @property
    def shown(self) -> str:
        """The mean with its error."""
        return f"{self.mean:.2f}" if self.error is None else f"{self.mean:.2f} ± {self.error:.2f}"

    def __str__(self) -> str:
        return f"{self.shown} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


def mean_of(runs: Sequence[Run], setting: Setting) -> Mean | None:
    """The final accuracy of the runs of a setting; ``None`` if there are none."""
    percents = [100 * run.test_accuracy for run in one_of_each_seed(runs, setting)]
    if not percents:
        return None
    error = statistics.stdev(percents) / len(percents) ** 0.5 if len(percents) > 1 else None
    return Mean(statistics.mean(percents), error, len(percents))
