"""Several seeds of one setting: median and range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from noisette.training.report.facts import percent
from papers.abadi_2016.runs import Run
from papers.abadi_2016.setting import Setting


@dataclass(frozen=True)
class Spread:
    """Test accuracies of the finished seeds."""

    low: float
    median: float
    high: float
    seeds: int

    @classmethod
    def of(cls, accuracies: Sequence[float]) -> Spread:
        return cls(min(accuracies), statistics.median(accuracies), max(accuracies), len(accuracies))

    @property
    def accuracy(self) -> str:
        """The median, with the range if there are several seeds."""
        return percent(self.median) + (f" ({self._range})" if self.seeds > 1 else "")

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{percent(self.median)} (1 seed)"
        return f"{percent(self.median)} ({self._range}, {self.seeds} seeds)"

    @property
    def _range(self) -> str:
        return f"{100 * self.low:.1f} to {100 * self.high:.1f}"


def of_setting(runs: Sequence[Run], setting: Setting, *, steps: int = 1) -> list[Run]:
    """Return the runs of a setting with at least so many steps, the longest of each seed."""
    longest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.steps):
        if run.setting == setting and run.lasts(steps):
            longest[run.seed] = run
    return [longest[seed] for seed in sorted(longest)]


def within(runs: Sequence[Run], steps: int) -> Spread | None:
    """Summarise the seeds' latest accuracies within so many steps; ``None`` if there are none."""
    accuracies = [accuracy for run in runs if (accuracy := run.accuracy_within(steps)) is not None]
    return Spread.of(accuracies) if accuracies else None


def course(runs: Sequence[Run]) -> list[tuple[int, Spread]]:
    """Summarise the seeds' latest accuracies at each measured step of the shortest run."""
    shortest = min(runs, key=lambda run: run.steps, default=None)
    spreads = ((step, within(runs, step)) for step, _ in shortest.points) if shortest else ()
    return [(step, spread) for step, spread in spreads if spread]
