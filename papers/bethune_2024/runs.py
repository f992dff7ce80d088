"""Finished and planned runs of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import run_file
from papers.bethune_2024.setting import Setting
from papers.grid import one_of_each_seed
from papers.recipe_run import carry_out

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.training.loop import Outcome
    from papers.paper import Tell

_POINTS = 10  # test accuracies along a run


@dataclass(frozen=True)
class Run:
    """A finished run and its results on the test examples, from 0 to 1.

    ``reached`` is the accuracy, or the area under the ROC curve, and ``certified`` the certified accuracy at each of
    the setting's radii.
    """

    setting: Setting
    seed: int
    seconds: float
    steps: int
    epsilon: float
    noise_multiplier: float
    reached: float
    certified: tuple[float, ...]


def read(path: Path) -> list[Run]:
    """Read the finished runs of a file, in order; none if there is no file.

    Raises:
        ValueError: a line is not a run.
    """
    return run_file.read(path, _parsed)


def _parsed(facts: Mapping[str, Any]) -> Run:
    setting: dict[str, Any] = facts["setting"] | {"radii": tuple(facts["setting"]["radii"])}
    return Run(
        setting=Setting(**setting),
        seed=facts["seed"],
        seconds=facts["seconds"],
        steps=facts["steps"],
        epsilon=facts["epsilon"],
        noise_multiplier=facts["noise_multiplier"],
        reached=facts["reached"],
        certified=tuple(facts["certified"]),
    )


@dataclass(frozen=True)
class Cell:
    """A planned run of a setting with a seed; ``seconds`` is its approximate time on one processor core."""

    setting: Setting
    seed: int
    seconds: float

    @property
    def sets(self) -> tuple[str, ...]:
        """The data set of the run, and that of the public examples if there are any."""
        return (self.setting.data, *([self.setting.public] if self.setting.public else []))

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Carry out the run and add its line to the file."""
        setting, records = self.setting, data[self.setting.data]
        public = data[setting.public] if setting.public else None
        measured: dict[str, Any] = {}
        facts = carry_out(
            setting.recipe(self.seed),
            records,
            public,
            tell,
            points=_POINTS,
            on_outcome=lambda outcome: measured.update(_measured(setting, outcome)),
        )
        known = {"setting": asdict(setting), "seed": self.seed, "records": records.declared_size}
        run_file.append(runs, known | facts | measured | {"made_with": run_file.made_with()})


def _measured(setting: Setting, outcome: Outcome) -> dict[str, Any]:
    import torch
    from torch import nn

    from noisette.lipschitz.certified_radius import certified_accuracy
    from papers.bethune_2024.anomalies import area_under_roc

    model, test = outcome.model, outcome.data.test
    assert test is not None, "every set of the study has test examples"
    reached = area_under_roc(model, test) if setting.anomalies else outcome.points[-1].test_accuracy
    certified: list[float] = []
    if setting.radii:
        whole = nn.Sequential(model.get_submodule("features"), model.get_submodule("head"))
        inputs, targets = torch.as_tensor(test.inputs), torch.as_tensor(test.targets)
        certified = certified_accuracy(whole, inputs, targets, setting.radii)
    return {"reached": reached, "certified": certified}


@dataclass(frozen=True)
class Median:
    """Median, minimum and maximum over seeds, in per cent."""

    median: float
    least: float
    most: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.median:.1f} (1 seed)"
        return f"{self.median:.1f} ({self.least:.1f} to {self.most:.1f})"


def median_of(runs: Sequence[Run], setting: Setting) -> Median | None:
    """Summarise the results of the runs of a setting; ``None`` if there are none."""
    return _median([run.reached for run in one_of_each_seed(runs, setting)])


def certified_of(runs: Sequence[Run], setting: Setting, radius: float) -> Median | None:
    """Summarise the certified accuracy of the runs of a setting at one of its radii; ``None`` if there are none."""
    place = setting.radii.index(radius)
    return _median([run.certified[place] for run in one_of_each_seed(runs, setting)])


def _median(shares: Sequence[float]) -> Median | None:
    if not shares:
        return None
    percents = [100 * share for share in shares]
    return Median(statistics.median(percents), min(percents), max(percents), len(percents))
