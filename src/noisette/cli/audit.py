"""``noisette audit``: lower bounds on the leakage of a run or a recipe, beside its guarantee."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisette import errors as checks
from noisette._internal.allocator import keep_freed_memory
from noisette.cli.audit_results import AuditResults
from noisette.cli.errors import INTERRUPTED, plain_errors
from noisette.cli.options import DataDir, option
from noisette.training.unfinished import in_words, unfinished_runs

if TYPE_CHECKING:
    from noisette.audit import Attack

_FOUND = 1
_MECHANISM, _RECORDS = "Audits of the mechanism", "Audits that read the records"
_mechanism, _records = partial(option, panel=_MECHANISM), partial(option, panel=_RECORDS)


@plain_errors()
def audit(
    place: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_RECIPE", help="The folder of a finished run, or a recipe in a TOML file."),
    ],
    *,
    steps: Annotated[int, _mechanism("N", "Steps of the step audit; each gives 512 scores.")] = 48,
    pairs: Annotated[
        int,
        _mechanism(
            "N",
            "Pairs of batches that differ by one record, on the run's own model and random records; 0 for none.",
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
        int,
        _records("N", "Number of shadow models that --membership trains on halves of the records; 0 for none."),
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
    from noisette.audit.one_run import check_confidence

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
    from noisette.training.report import power_of_ten, upward

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
    from noisette.training.report import percent, power_of_ten

    lines = []
    if one := results.one_run:
        lines.append(
            f"one run: epsilon {one.epsilon:.2f} or more for a Gaussian trade-off curve, {one.plain_epsilon:.2f} for "
            f"any, at {percent(one.confidence)} confidence; {results.run.epsilon:g} guaranteed at delta "
            f"{power_of_ten(one.delta)}"
        )
    if results.membership:
        for attack in results.membership.attacks:
            caught = ", ".join(_caught(attack, rate) for rate in RATES)
            records = f"{len(attack.members):,} members and {len(attack.others):,} others"
            lines.append(f"{records}, by {attack.name}: AUC {attack.auc:.3f}, {caught}")
    return [*lines, f"These lines are {NOT_PRIVATE}."] if lines else []


def _caught(attack: Attack, rate: float) -> str:
    from noisette.training.report import percent

    share = attack.caught(rate)
    return f"true positive rate {'?' if share is None else percent(share)} at false positive rate {percent(rate)}"
