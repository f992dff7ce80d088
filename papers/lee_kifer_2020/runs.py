"""Finished and planned measurements: one cell of an experiment of ``python -m benchmarks`` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.report import measure
from papers import run_file
from papers.lee_kifer_2020 import baselines as baselines  # adds multiLoss to the methods
from papers.paper import Asked

if TYPE_CHECKING:
    from noisette.data import DataSet
    from papers.paper import Tell

Measured = Mapping[str, Any]  # a cell of a report of python -m benchmarks
ROUNDS = 10  # as the paper repeats
_LIMIT = 5.0  # seconds, after which the rounds of a cell end, once there are three


@dataclass(frozen=True)
class Setting:
    """The measured cell of an experiment, the methods, the device, and how often steps are measured."""

    experiment: str
    model: str
    batch: int
    image: int | None
    methods: tuple[str, ...]
    threads: int
    device: str = "cpu"
    rounds: int = ROUNDS
    limit: float = _LIMIT

    @property
    def cell(self) -> Cell:
        """The cell as the benchmark names it."""
        return Cell(self.model, self.batch, self.image)


@dataclass(frozen=True)
class Run:
    """A finished measurement: what the benchmark reports of the cell, and the name of the processor or GPU."""

    setting: Setting
    measured: Measured
    machine: str


@dataclass(frozen=True)
class Job:
    """A planned measurement; ``seconds`` is its approximate time on one processor core."""

    setting: Setting
    seconds: float

    @property
    def sets(self) -> tuple[str, ...]:
        """None: the examples are random."""
        return ()

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Measure the cell and add its line to the file."""
        setting, done = self.setting, 0.0

        def advance(share: float) -> None:
            nonlocal done
            done += share
            tell(min(done, 1.0), None)

        experiment = replace(EXPERIMENTS[setting.experiment], cells=(setting.cell,), methods=setting.methods)
        settings = Settings(setting.rounds, setting.threads, setting.device, setting.limit)
        [report] = measure(setting.experiment, experiment, settings, advance)
        facts = {"setting": asdict(setting), "measured": report["cells"][0]}
        run_file.append(runs, facts | {"made_with": run_file.made_with() | report["hardware"]})


@dataclass(frozen=True)
class Plan:
    """The cells of an experiment that a processor can measure, and those of the paper, with the methods of each.

    ``seconds`` is the approximate time of a cell.
    """

    experiment: str
    small: tuple[Cell, ...]
    whole: tuple[Cell, ...]
    methods: Callable[[Cell, bool], tuple[str, ...]]  # of a cell, and whether the whole plan is asked for
    seconds: Callable[[Cell], float]

    def missing(self, asked: Asked, done: Sequence[Run]) -> list[Job]:
        """List the cells that are not measured on this kind of device, with as many threads as torch has now."""
        threads, device = torch.get_num_threads(), "cuda" if torch.cuda.is_available() else "cpu"
        cells = self.whole if asked.full else self.small
        settings = {
            Setting(self.experiment, c.name, c.batch, c.image, self.methods(c, asked.full), threads, device): c
            for c in cells
        }
        finished = {run.setting for run in done}
        return [Job(setting, self.seconds(cell)) for setting, cell in settings.items() if setting not in finished]

    def runs(self, runs: Sequence[Run]) -> dict[Cell, Run | None]:
        """The last measurement of each cell in the order of the paper; ``None`` for a small one that is missing."""
        last = {run.setting.cell: run for run in runs if run.setting.experiment == self.experiment}
        cells = dict.fromkeys((*self.whole, *self.small))
        return {cell: last.get(cell) for cell in cells if cell in self.small or cell in last}

    def measured(self, runs: Sequence[Run]) -> list[Measured]:
        """What is measured, in the order of the paper."""
        return [run.measured for run in self.runs(runs).values() if run]


def read(path: Path) -> list[Run]:
    """Read the finished measurements of a file, in order; none if there is no file.

    Raises:
        ValueError: a line is not a measurement.
    """
    return run_file.read(path, _parsed)


# A method as older measurements name it: the same algorithm, whose second pass was of the re-weighted losses.
_OLDER = {"TwoPass": "ReweightGP"}


def _parsed(facts: Mapping[str, Any]) -> Run:
    setting: dict[str, Any] = facts["setting"]
    setting = setting | {"methods": tuple([_OLDER.get(name, name) for name in setting["methods"]])}
    measured: dict[str, Any] = facts["measured"]
    measured = measured | {"methods": {_OLDER.get(name, name): row for name, row in measured["methods"].items()}}
    machine = facts["made_with"]
    name = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    return Run(Setting(**setting), measured, name)


def amount_of(measured: Measured, method: str, unit: str = "seconds") -> float | None:
    """The seconds of a step of a method, or its bytes; ``None`` if it was not measured or failed."""
    return measured["methods"].get(method, {}).get(unit)


def gain(measured: Measured, method: str) -> float | None:
    """How many times as long as a method nxBP takes; ``None`` if one of them was not measured."""
    loop, other = amount_of(measured, "nxBP"), amount_of(measured, method)
    return loop / other if loop and other else None


def quickest(measured: Measured) -> str | None:
    """The quicker of the captured and the compiled step."""
    times = {name: time for name in ("captured", "compiled") if (time := amount_of(measured, name))}
    return min(times, key=lambda name: times[name], default=None)


def captured_gain(measured: Measured) -> float | None:
    """How many times as long as the quicker of the captured and the compiled step nxBP takes."""
    name = quickest(measured)
    return gain(measured, name) if name else None
