"""The audits that ``noisette audit`` makes, their results, and the files that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from noisette import errors as checks
from noisette.cli.options import INTERRUPTED, DataDir, option, plain_errors
from noisette.training import keep_freed_memory
from noisette.training.run_folder import in_words, unfinished_runs

if TYPE_CHECKING:
    from torch import nn

    from noisette.audit import Membership, NeighbourAudit, OneRunAudit, RunAudit, StepAudit, Verdict
    from noisette.audit.audited_run import AuditedRun
    from noisette.data import DataSet
    from noisette.training.evaluation import Watch as OnStep

_WITHOUT_RECORDS = {"audit.json", "step.svg", "whole-run.svg"}


@dataclass
class AuditResults:
    """The run that is audited, and the results of the audits made so far."""

    path: Path  # a run folder, or a recipe
    data_dir: Path | None
    step: StepAudit | None = None
    neighbours: NeighbourAudit | None = None
    whole_run: RunAudit | None = None
    one_run: OneRunAudit | None = None
    membership: Membership | None = None
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from noisette.audit.audited_run import AuditedRun
        from noisette.training.recipe import Recipe
        from noisette.training.records import load_data

        if self.path.is_dir():
            self.run: AuditedRun = AuditedRun.of_run(self.path)
        else:
            recipe = Recipe.read(self.path)
            self.run = AuditedRun.of_recipe(recipe, load_data(recipe, self.data_dir))

    def check_members(self) -> None:
        """Check that members of the run can be told from others, as an attack on its model needs."""
        if self.run.recipe.data.holdout is not None:
            raise ValueError(
                "which records this run held out was forgotten when it ended, so members and others cannot be told "
                "apart; leave --membership out"
            )
        if self.run.unknown:
            raise ValueError(
                f"--membership reads the records of the run, and its folder does not contain {self.run.unknown}; leave "
                "--membership out. A recipe can be audited with --one-run, which reads its records"
            )

    def audit_mechanism(self, steps: int, pairs: int, whole_run: bool) -> None:
        """Make the audits that read no record."""
        self.step = self.run.audit_step(steps=steps)
        if pairs and self.run.unknown:
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
        from noisette.training.loop import train
        from noisette.training.records import load_data, load_public
        from noisette.training.saved_model import SavedModel

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
                    SavedModel.of_run(self.path).model,
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
        """Write figures and results, with mode 0600 what is computed from records."""
        from noisette.accounting import atomic_files
        from noisette.audit import figures
        from noisette.training.report.figures import standalone

        delta = self.run.delta
        assert self.step is not None, "audited first"
        results: dict[str, Any] = {"guarantee": self.run.facts(), "step": self.step.facts(delta=delta)}
        drawn = {"step.svg": figures.step_figure(self.step)}
        if self.neighbours:
            results["neighbours"] = self.neighbours.facts(delta=delta)
        if self.whole_run:
            results["whole_run"] = self.whole_run.facts()
            drawn["whole-run.svg"] = figures.run_figure(self.whole_run)
        files: dict[str, Any] = {"audit.json": results}
        if self.one_run:
            files["one-run.json"] = self.one_run.facts()
        if self.membership:
            files["membership.json"] = self.membership.facts()
            drawn["membership.svg"] = figures.membership_figure(self.membership)
        texts = {name: standalone(figure) for name, figure in drawn.items()}
        texts |= {name: json.dumps(found, indent=2) + "\n" for name, found in files.items()}
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            atomic_files.write(folder / name, text.encode(), mode=0o666 if name in _WITHOUT_RECORDS else 0o600)


_FOUND = 1
_MECHANISM, _RECORDS = "Audits of the mechanism", "Audits that read the records"
_mechanism, _records = partial(option, panel=_MECHANISM), partial(option, panel=_RECORDS)


@plain_errors()
def audit(
    place: Annotated[
        Path, typer.Argument(metavar="RUN_OR_RECIPE", help="The folder of a finished run, or a recipe in a TOML file.")
    ],
    *,
    steps: Annotated[int, _mechanism("N", "Steps of the step audit; each gives 512 scores.")] = 48,
    pairs: Annotated[
        int,
        _mechanism(
            "N", "Pairs of batches that differ by one record, on the run's own model and random records; 0 for none."
        ),
    ] = 30,
    whole_run: Annotated[
        bool,
        typer.Option(
            "--whole-run", help="Also audit a whole run, with its sampling. Takes minutes.", rich_help_panel=_MECHANISM
        ),
    ] = False,
    one_run: Annotated[
        int | None,
        _records(
            "N",
            "Also train once with a random half of N mislabelled canaries, and guess which were in the data. Not "
            "private.",
        ),
    ] = None,
    confidence: Annotated[float, _records("F", "Confidence of the bound from --one-run: 0.95 to 0.999.")] = 0.95,
    membership: Annotated[
        bool,
        typer.Option(
            "--membership",
            help="Also attack the run's model by membership inference, on training and test records. Not private.",
            rich_help_panel=_RECORDS,
        ),
    ] = False,
    shadows: Annotated[
        int, _records("N", "Number of shadow models that --membership trains on halves of the records; 0 for none.")
    ] = 0,
    out: Annotated[Path | None, option("DIR", "Folder for figures and results.", "audits/NAME of the run")] = None,
    data_dir: DataDir = None,
) -> None:
    """Test the guarantee of a run or a recipe with canaries in the real training loop.

    The step audit hides canaries among random records and measures how far each moves what the training loop releases,
    with the run's own gradient bound and noise. It takes seconds and reads no record.

    Exit code 0 if nothing was found, 1 if a guarantee is refuted or the mechanism is not the documented one, 2 for
    invalid input.
    """
    from noisette.audit.membership import check_confidence

    checks.all_of(
        lambda: checks.count(steps=steps),
        lambda: pairs == 0 or checks.count(pairs=pairs),
        lambda: one_run is None or checks.count(one_run=one_run),
        lambda: check_confidence(confidence),
        lambda: _check_shadows(shadows, membership),
        lambda: _check_place(place, membership),
    )
    keep_freed_memory()
    try:
        results = AuditResults(place, data_dir)
        if membership:
            results.check_members()
        results.audit_mechanism(steps, pairs, whole_run)
        results.audit_records(one_run, confidence, membership, shadows)
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    folder = out or Path("audits", place.resolve().name.removesuffix(".toml"))
    results.write(folder)
    _print(results, folder)
    if results.findings:
        raise typer.Exit(_FOUND)


def _check_shadows(shadows: int, membership: bool) -> None:
    if shadows and not membership:
        raise ValueError("--shadows is an option of the membership-inference attacks; add --membership")
    if shadows < 0 or shadows == 1:
        raise ValueError(f"expected --shadows as 0, or at least 2 so that each record is left out once, got {shadows}")


def _check_place(place: Path, membership: bool) -> None:
    if not place.exists():
        unfinished = [in_words(folder) for folder in unfinished_runs(place)]
        raise ValueError("\n".join([f"there is no {place}; give the folder of a run, or a recipe", *unfinished]))
    if membership and not place.is_dir():
        raise ValueError("--membership attacks a trained model: give the folder of its run")


def _print(results: AuditResults, folder: Path) -> None:
    """Print the results: a table, statistics, remarks and findings."""
    console = Console(soft_wrap=True, highlight=False)
    table = Table(
        "", "certified, at least", "guaranteed, at most", "verdict", box=None, pad_edge=False, header_style="bold"
    )
    for row in _rows(results):
        table.add_row(*row)
    console.print(table)
    if results.step:
        checks = "  ".join(f"{check.name} {check.z:+.1f} ({check.limit:.1f})" for check in results.step.checks)
        console.print(f"\nstatistics of the step, each with the most it may be: {checks}", markup=False)
    for remark in results.remarks:
        console.print(remark, markup=False)
    for line in _about_records(results):
        console.print(line, markup=False)
    for finding in results.findings:
        console.print(f"Found: {finding}", markup=False, style="bold")
    console.print(f"\nverdict  {results.verdict.value}\nfigures  {folder}", markup=False)


def _rows(results: AuditResults) -> list[tuple[str, str, str, str]]:
    from noisette.training.report.facts import power_of_ten, upward

    rows = []
    if step := results.step:
        delta = results.run.delta
        certified = f"mu {step.certified_mu:.2f}, epsilon {step.certified_epsilon(delta=delta):.2f}"
        guaranteed = f"mu {step.guaranteed_mu:.2f}, epsilon {upward(step.guaranteed_epsilon(delta=delta))}"
        rows.append((f"one step, delta {power_of_ten(delta)}", certified, guaranteed, step.verdict.value))
    if near := results.neighbours:
        rows.append(("one record more", f"{near.worst:.3f} of the bound", "1.000", near.verdict.value))
    if run := results.whole_run:
        rows += [
            (
                f"whole run, delta {power_of_ten(p.delta)}",
                f"epsilon {p.certified:.2f}",
                f"epsilon {upward(p.guaranteed)}",
                run.verdict.value,
            )
            for p in run.points
        ]
    return rows


def _about_records(results: AuditResults) -> list[str]:
    """The results of the audits that read the records, in lines."""
    from noisette.audit.membership import NOT_PRIVATE, RATES
    from noisette.training.report.facts import percent, power_of_ten

    lines = []
    if one := results.one_run:
        lines.append(
            f"one run: epsilon {one.epsilon:.2f} or more for a Gaussian trade-off curve, {one.plain_epsilon:.2f} for "
            f"any, at {percent(one.confidence)} confidence; {results.run.epsilon:g} guaranteed at delta "
            f"{power_of_ten(one.delta)}"
        )
    if results.membership:
        for attack in results.membership.attacks:
            shares = {rate: attack.caught(rate) for rate in RATES}
            caught = ", ".join(
                f"true positive rate {'?' if share is None else percent(share)} at false positive rate {percent(rate)}"
                for rate, share in shares.items()
            )
            records = f"{len(attack.members):,} members and {len(attack.others):,} others"
            lines.append(f"{records}, by {attack.name}: AUC {attack.auc:.3f}, {caught}")
    return [*lines, f"These lines are {NOT_PRIVATE}."] if lines else []
