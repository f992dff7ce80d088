"""``noisette audit``: plays against a run or a recipe, and says what leaked beside what was claimed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisette._internal import checks
from noisette._internal.allocator import keep_freed_memory
from noisette.cli.audited import Audited
from noisette.cli.errors import INTERRUPTED, plain_errors

if TYPE_CHECKING:
    from noisette.audit import Attack

_FOUND = 1


@plain_errors()
def audit(
    place: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_RECIPE", help="The folder of a finished run, or a recipe in a TOML file."),
    ],
    *,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of the step audit; each gives 512 scores.", rich_help_panel="Games")
    ] = 48,
    pairs: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Pairs of batches that differ by one record, on the run's own model and random records; 0 for none.",
            rich_help_panel="Games",
        ),
    ] = 30,
    whole_run: Annotated[
        bool,
        typer.Option(
            "--whole-run", help="Also play whole runs, with their sampling. Takes minutes.", rich_help_panel="Games"
        ),
    ] = False,
    one_run: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Also train once with N mislabelled canaries among the records, and guess who they were. Not private.",
            rich_help_panel="Looks at the records",
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            metavar="F", help="Of the bound from one run: 0.95 to 0.999.", rich_help_panel="Looks at the records"
        ),
    ] = 0.95,
    membership: Annotated[
        bool,
        typer.Option(
            "--membership",
            help="Also attack the run's model with its own records and the test records. Not private.",
            rich_help_panel="Looks at the records",
        ),
    ] = False,
    shadows: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Models that --membership trains on halves of the records, to compare with; 0 for none.",
            rich_help_panel="Looks at the records",
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where figures and numbers go.", show_default="audits/NAME of the run"),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the files of built-in data lie.",
            show_default="$NOISETTE_DATA, then the user cache, then download",
        ),
    ] = None,
) -> None:
    """Play against a run or a recipe: how far one record moves a step at least, beside what was claimed.

    The step audit hides canaries among random records and sees what the real training loop releases of them, under the
    run's own way of bounding and its noise. Seconds, and no record is looked at.

    Exit code 0 if nothing was found, 1 if a claim is refuted or the mechanism is not the documented one, 2 for bad
    input.
    """
    from noisette.audit.guesses import check_confidence

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
        found = Audited(place, data_dir)
        found.play(steps, pairs, whole_run)
        found.look(one_run, confidence, membership, shadows)
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    folder = out or Path("audits", place.resolve().name.removesuffix(".toml"))
    found.write(folder)
    _print(found, folder)
    if found.findings:
        raise typer.Exit(_FOUND)


def _check_shadows(shadows: int, membership: bool) -> None:
    if shadows and not membership:
        raise ValueError("--shadows is for an attack on members; add --membership")
    if shadows < 0 or shadows == 1:
        raise ValueError(f"expected --shadows as 0, or at least 2 so that each record is left out once, got {shadows}")


def _check_place(place: Path, membership: bool) -> None:
    if not place.exists():
        raise ValueError(f"there is no {place}; name the folder of a run, or a recipe")
    if membership and not place.is_dir():
        raise ValueError("--membership attacks a trained model: name the folder of its run")


def _print(found: Audited, folder: Path) -> None:
    """What came of it, on the terminal."""
    console = Console(soft_wrap=True, highlight=False)
    table = Table(
        "", "certified, at least", "claimed, at most", "verdict", box=None, pad_edge=False, header_style="bold"
    )
    for row in _rows(found):
        table.add_row(*row)
    console.print(table)
    if found.step:
        checks = "  ".join(f"{check.name} {check.z:+.1f}" for check in found.step.checks)
        console.print(f"\nz-scores of the step: {checks}", markup=False)
    for remark in found.remarks:
        console.print(remark, markup=False)
    for line in _about_records(found):
        console.print(line, markup=False)
    for finding in found.findings:
        console.print(f"Found: {finding}", markup=False, style="bold")
    console.print(f"\nverdict  {found.verdict.value}\nfigures  {folder}", markup=False)


def _rows(found: Audited) -> list[tuple[str, str, str, str]]:
    from noisette.training.report import power_of_ten, upward

    rows = []
    if step := found.step:
        delta = found.subject.delta
        sure = f"mu {step.certified_mu:.2f}, epsilon {step.certified_epsilon(delta=delta):.2f}"
        claimed = f"mu {step.claimed_mu:.2f}, epsilon {upward(step.claimed_epsilon(delta=delta))}"
        rows.append((f"one step, delta {power_of_ten(delta)}", sure, claimed, step.verdict.value))
    if near := found.neighbours:
        rows.append(("one record more", f"{near.worst:.3f} of the bound", "1.000", near.verdict.value))
    if runs := found.runs:
        rows += [
            (
                f"whole run, delta {power_of_ten(p.delta)}",
                f"epsilon {p.certified:.2f}",
                f"epsilon {upward(p.claimed)}",
                runs.verdict.value,
            )
            for p in runs.points
        ]
    return rows


def _about_records(found: Audited) -> list[str]:
    from noisette.audit.membership import NOT_PRIVATE, RATES
    from noisette.training.report import percent, power_of_ten

    lines = []
    if one := found.one_run:
        lines.append(
            f"one run: epsilon {one.epsilon:.2f} or more for a Gaussian curve, {one.plain_epsilon:.2f} for any, at "
            f"{percent(one.confidence)} confidence; {found.subject.epsilon:g} claimed at delta "
            f"{power_of_ten(one.delta)}"
        )
    if members := found.members:
        for attack in members.attacks:
            caught = ", ".join(_caught(attack, rate) for rate in RATES)
            seen = f"{len(attack.members):,} members among {len(attack.others):,} others"
            lines.append(f"{seen}, by {attack.name}: AUC {attack.auc:.3f}, {caught}")
    return [*lines, f"These lines are {NOT_PRIVATE}."] if lines else []


def _caught(attack: Attack, rate: float) -> str:
    from noisette.training.report import percent

    share = attack.caught(rate)
    return f"{'?' if share is None else percent(share)} caught at {percent(rate)} false alarms"
