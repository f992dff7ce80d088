"""``noisette audit``: the audits that it makes, their results, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from noisette import errors as checks
from noisette.accounting import atomic_files
from noisette.cli.options import INTERRUPTED, DataDir, RunModel, flag, option, plain_errors
from noisette.training import keep_freed_memory
from noisette.training.recipe import Recipe, load_data
from noisette.training.run_folder import check_folder, in_words, sealed_facts, signature_in_words, unfinished_runs

if TYPE_CHECKING:
    from noisette.audit.audited_run import AuditedRun


@plain_errors()
def audit(
    place: Annotated[
        Path, typer.Argument(metavar="RUN_OR_RECIPE", help="The folder of a finished run, or a recipe in a TOML file.")
    ],
    *,
    steps: Annotated[int, option("N", "Steps of the step audit; each gives 512 scores.")] = 48,
    pairs: Annotated[int, option("N", "Pairs of batches that differ by a record, on the run's model; 0: none.")] = 30,
    whole_run: Annotated[bool, flag("--whole-run", "Audit a whole run too, with its sampling. Takes minutes.")] = False,
    model: RunModel = None,
    out: Annotated[Path | None, option("DIR", "Folder for the results.", "audits/NAME of the run")] = None,
    data_dir: DataDir = None,
) -> None:
    """Test the guarantee of a run or a recipe: its cost by simulation, and its training loop with canaries.

    The step audit hides canaries among random records and measures how far each moves what the training loop releases,
    with the run's own gradient bound and noise. It takes seconds and reads no record.

    Exit code 0 if nothing was found, 1 if a guarantee is refuted or the mechanism is not the documented one, 2 for
    invalid input.
    """
    folder = out or Path("audits", place.resolve().name.removesuffix(".toml"))
    *_, recipe = checks.all_of(
        lambda: checks.count(steps=steps),
        lambda: checks.whole(pairs=pairs),
        lambda: check_folder(folder),
        lambda: _recipe_at(place, model),
    )
    keep_freed_memory()
    try:
        from noisette.audit.audited_run import AuditedRun

        if recipe is None:
            typer.echo(f"signature: {signature_in_words(sealed_facts(place))}", err=True)
            run = AuditedRun.of_run(place, model)
        else:
            run = AuditedRun.of_recipe(recipe, load_data(recipe, data_dir))
        made, remarks = _audits(run, steps, pairs, whole_run)
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"guarantee": run.facts(), **{name: one.facts() for name, one in made.items()}}
    atomic_files.write(folder / "audit.json", (json.dumps(facts, indent=2) + "\n").encode(), mode=0o666)
    _print(made, remarks, folder)
    if any(audit.findings for audit in made.values()):
        raise typer.Exit(1)


def _recipe_at(place: Path, model: str | None) -> Recipe | None:
    """The recipe in a file, ``None`` for the folder of a run, which is not read yet."""
    if not place.exists():
        unfinished = [in_words(begun) for begun in unfinished_runs(place)]
        raise ValueError("\n".join([f"there is no {place}; give the folder of a run, or a recipe", *unfinished]))
    if place.is_dir():
        return None
    if model is not None:
        raise ValueError("a recipe names its model itself; --model is for the folder of a run")
    return Recipe.read(place)


def _audits(run: AuditedRun, steps: int, pairs: int, whole_run: bool) -> tuple[dict[str, Any], list[str]]:
    """The audits that read no record, by name, and remarks on them."""
    made: dict[str, Any] = {"cost": run.audit_cost()}
    remarks = []
    if left_out := made["cost"].left_out:
        remarks.append(f"Releases that were not simulated: {', '.join(left_out)}.")
    if run.other_batches:
        known = "Canaries are for runs with Poisson batches of records"
        if run.event.mechanism in left_out:
            raise ValueError(f"{known}, and the cost of {run.other_batches} is not simulated: no audit is left")
        if whole_run:
            raise ValueError(f"{known}, and this one has {run.other_batches}; leave --whole-run out")
        return made, [*remarks, f"{known}. Of this one, with {run.other_batches}, the stated cost was audited alone."]
    made["step"] = run.audit_step(steps=steps)
    if pairs and run.unknown:
        remarks.append(f"The run's own model was not audited: its folder does not contain {run.unknown}.")
    elif pairs:
        made["neighbours"] = run.audit_neighbours(pairs=pairs)
    if whole_run:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("whole run", total=None)
            made["whole_run"] = run.audit_whole_run(on_step=lambda at, of: bar.update(task, completed=at, total=of))
    return made, remarks


def _print(made: dict[str, Any], lines: list[str], folder: Path) -> None:
    from noisette.audit import Verdict
    from noisette.training.report.facts import power_of_ten, upward

    console = Console(soft_wrap=True, highlight=False)
    headings = ("", "certified, at least", "guaranteed, at most", "verdict")
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    cost, step, near, run = made["cost"], *(made.get(name) for name in ("step", "neighbours", "whole_run"))
    stated = f"delta {power_of_ten(cost.delta)}"
    table.add_row(f"cost at epsilon {cost.epsilon:.4g}", f"delta {cost.least:.2g}", stated, cost.verdict.value)
    if step:
        table.add_row("one step", f"mu {step.certified_mu:.2f}", f"mu {step.guaranteed_mu:.2f}", step.verdict.value)
    if near:
        table.add_row("one record more", f"{near.worst:.3f} of the bound", "1.000", near.verdict.value)
    if run:
        for delta, guaranteed, certified in run.points:
            epsilons = f"epsilon {certified:.2f}", f"epsilon {upward(guaranteed)}"
            table.add_row(f"whole run, delta {power_of_ten(delta)}", *epsilons, run.verdict.value)
    console.print(table)
    if step:
        statistics = "  ".join(f"{check.name} {check.z:+.1f} ({check.limit:.1f})" for check in step.checks)
        console.print(f"\nstatistics of the step, each with the most it may be: {statistics}", markup=False)
    for line in lines:
        console.print(line, markup=False)
    for finding in [line for audit in made.values() for line in audit.findings]:
        console.print(f"Found: {finding}", markup=False, style="bold")
    verdict = next(worst for worst in Verdict if worst in [audit.verdict for audit in made.values()])
    console.print(f"\nverdict  {verdict.value}\nresults  {folder}", markup=False)
