"""What ``noisette audit`` plays, what it finds, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noisette.cli.training import load_data, load_public

if TYPE_CHECKING:
    from noisette.audit import Membership, NeighbourAudit, OneRunAudit, RunAudit, StepAudit, Verdict
    from noisette.audit.subject import Subject


@dataclass
class Audited:
    """What is audited, and what came of it so far."""

    place: Path
    data_dir: Path | None
    step: StepAudit | None = None
    neighbours: NeighbourAudit | None = None
    runs: RunAudit | None = None
    one_run: OneRunAudit | None = None
    members: Membership | None = None
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from noisette.audit.subject import Subject
        from noisette.training.recipe import Recipe

        if self.place.is_dir():
            self.subject: Subject = Subject.of_run(self.place)
        else:
            recipe = Recipe.read(self.place)
            self.subject = Subject.of_recipe(recipe, load_data(recipe.data, self.data_dir))

    def play(self, steps: int, pairs: int, whole_run: bool) -> None:
        """The games, which look at no record."""
        from noisette.audit.on_subject import play_neighbours, play_runs, play_step

        subject = self.subject
        self.step = play_step(subject, steps=steps)
        if pairs and subject.recipe is None:
            self.remarks.append(f"The run's own model was not looked at: its folder does not hold {subject.unknown}.")
        elif pairs:
            self.neighbours = play_neighbours(subject, pairs=pairs)
        if whole_run:
            with _Bar("whole runs") as tell:
                self.runs = play_runs(subject, on_step=tell)

    def look(self, one_run: int | None, confidence: float, membership: bool, shadows: int) -> None:
        """What looks at the records, where it was asked for."""
        if one_run is None and not membership:
            return
        from noisette.audit.trained import audit_one_run, membership_of, trained_by
        from noisette.cli.watch import Watch

        subject, recipe = self.subject, self.subject.known_recipe
        data, trained = (
            load_data(recipe.data, self.data_dir),
            trained_by(recipe, load_public(recipe.public, self.data_dir)),
        )
        if one_run is not None:
            with Watch("one run") as watch:
                self.one_run = audit_one_run(
                    trained, data, canaries=one_run, delta=subject.delta, confidence=confidence, on_step=watch.on_step
                )
        if membership:
            with Watch("shadow models") as watch:
                self.members = membership_of(
                    subject.model_in(self.place),
                    data,
                    epsilon=subject.epsilon,
                    delta=subject.delta,
                    shadows=shadows,
                    trained=trained,
                    on_step=watch.on_step,
                )

    @property
    def findings(self) -> list[str]:
        """What the games found. What one run or an attack tells has too little confidence to be one."""
        return [line for game in (self.step, self.neighbours, self.runs) if game for line in game.findings]

    @property
    def verdict(self) -> Verdict:
        """The worst of all games."""
        from noisette.audit import Verdict

        return Verdict.worst([game.verdict for game in (self.step, self.neighbours, self.runs) if game])

    def write(self, folder: Path) -> None:
        """Figures and numbers; what the records were looked at for lies in files of its own, for its owner alone."""
        from noisette._internal import atomic_files
        from noisette.audit import figures
        from noisette.training.report.svg import standalone

        delta = self.subject.delta
        assert self.step is not None, "played first"
        numbers: dict[str, Any] = {"claim": self.subject.facts(), "step": self.step.facts(delta=delta)}
        files = {"step.svg": standalone(figures.step_figure(self.step))}
        if self.neighbours:
            numbers["neighbours"] = self.neighbours.facts(delta=delta)
        if self.runs:
            numbers["whole_run"] = self.runs.facts()
            files["whole-run.svg"] = standalone(figures.run_figure(self.runs))
        files["audit.json"] = json.dumps(numbers, indent=2) + "\n"
        private: dict[str, str] = {}
        if self.one_run:
            private["one-run.json"] = json.dumps(self.one_run.facts(), indent=2) + "\n"
        if self.members:
            private["membership.json"] = json.dumps(self.members.facts(), indent=2) + "\n"
            private["membership.svg"] = standalone(figures.membership_figure(self.members))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            atomic_files.write(folder / name, text.encode())
        for name, text in private.items():
            atomic_files.write(folder / name, text.encode(), mode=0o600)


class _Bar:
    """A progress bar that goes away when it is done."""

    def __init__(self, title: str) -> None:
        self._progress = Progress(
            TextColumn(title),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return lambda done, of: self._progress.update(self._task, completed=done, total=of)

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
