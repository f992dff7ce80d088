"""The audits that ``noisette audit`` makes, their results, and the files that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from noisette.audit import Membership, NeighbourAudit, OneRunAudit, RunAudit, StepAudit, Verdict
    from noisette.audit.audited_run import AuditedRun
    from noisette.data import DataSet
    from noisette.training.outcome import Watch as OnStep


@dataclass
class AuditResults:
    """The run that is audited, and the results of the audits made so far.

    Args:
        path: a run folder, or a recipe.
        data_dir: where the files of built-in data sets are.
    """

    path: Path
    data_dir: Path | None
    step: StepAudit | None = None
    neighbours: NeighbourAudit | None = None
    whole_run: RunAudit | None = None
    one_run: OneRunAudit | None = None
    membership: Membership | None = None
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from noisette.audit.audited_run import AuditedRun
        from noisette.training.load import load_data
        from noisette.training.recipe import Recipe

        if self.path.is_dir():
            self.run: AuditedRun = AuditedRun.of_run(self.path)
        else:
            recipe = Recipe.read(self.path)
            self.run = AuditedRun.of_recipe(recipe, load_data(recipe, self.data_dir))

    def check_members(self) -> None:
        """Check that members of the run can be told from others, as an attack on its model needs.

        Raises:
            ValueError: they cannot.
        """
        if self.run.held_out:
            raise ValueError(
                "which records this run held out was forgotten when it ended, so members and others cannot be told "
                "apart; leave --membership out"
            )
        if self.run.recipe is None:
            raise ValueError(
                f"--membership reads the records of the run, and its folder does not contain {self.run.unknown}; leave "
                "--membership out. A recipe can be audited with --one-run, which reads its records"
            )

    def audit_mechanism(self, steps: int, pairs: int, whole_run: bool) -> None:
        """Make the audits that read no record."""
        self.step = self.run.audit_step(steps=steps)
        if pairs and self.run.recipe is None:
            self.remarks.append(f"The run's own model was not audited: its folder does not contain {self.run.unknown}.")
        elif pairs:
            self.neighbours = self.run.audit_neighbours(pairs=pairs)
        if whole_run:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task("whole run", total=None)
                self.whole_run = self.run.audit_whole_run(
                    on_step=lambda done, of: progress.update(task, completed=done, total=of)
                )

    def audit_records(self, one_run: int | None, confidence: float, membership: bool, shadows: int) -> None:
        """Make the audits that read the records, as far as they are asked for."""
        if one_run is None and not membership:
            return
        from noisette.audit import audit_one_run, membership_of
        from noisette.cli.watch import Watch
        from noisette.training.load import load_data, load_public
        from noisette.training.loop import train

        run, recipe = self.run, self.run.known_recipe
        data, public = load_data(recipe, self.data_dir), load_public(recipe, self.data_dir)

        def trained(data: DataSet, on_step: OnStep) -> nn.Module:
            return train(recipe, data, public=public, ledger_path=None, on_step=on_step).model

        if one_run is not None:
            with Watch("one run") as watch:
                self.one_run = audit_one_run(
                    trained, data, canaries=one_run, delta=run.delta, confidence=confidence, on_step=watch.on_step
                )
        if membership:
            with Watch("shadow models") as watch:
                self.membership = membership_of(
                    run.model_in(self.path),
                    data,
                    epsilon=run.epsilon,
                    delta=run.delta,
                    shadows=shadows,
                    trained=trained,
                    on_step=watch.on_step,
                )

    @property
    def findings(self) -> list[str]:
        """The findings about the mechanism. Audits of the records have too low a confidence to add any."""
        return [line for audit in (self.step, self.neighbours, self.whole_run) if audit for line in audit.findings]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on the mechanism."""
        from noisette.audit import Verdict

        return Verdict.worst([audit.verdict for audit in (self.step, self.neighbours, self.whole_run) if audit])

    def write(self, folder: Path) -> None:
        """Write figures and results. Those computed from records go to separate files of mode 0600."""
        from noisette._internal import atomic_files
        from noisette.audit import figures
        from noisette.training.report.svg import standalone

        delta = self.run.delta
        assert self.step is not None, "audited first"
        results: dict[str, Any] = {"guarantee": self.run.facts(), "step": self.step.facts(delta=delta)}
        files = {"step.svg": standalone(figures.step_figure(self.step))}
        if self.neighbours:
            results["neighbours"] = self.neighbours.facts(delta=delta)
        if self.whole_run:
            results["whole_run"] = self.whole_run.facts()
            files["whole-run.svg"] = standalone(figures.run_figure(self.whole_run))
        files["audit.json"] = json.dumps(results, indent=2) + "\n"
        private: dict[str, str] = {}
        if self.one_run:
            private["one-run.json"] = json.dumps(self.one_run.facts(), indent=2) + "\n"
        if self.membership:
            private["membership.json"] = json.dumps(self.membership.facts(), indent=2) + "\n"
            private["membership.svg"] = standalone(figures.membership_figure(self.membership))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            atomic_files.write(folder / name, text.encode())
        for name, text in private.items():
            atomic_files.write(folder / name, text.encode(), mode=0o600)
