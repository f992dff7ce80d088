"""``noisette reproduce``: a paper's figures made again, with the printed numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from noisette import _check
from noisette._allocator import keep_freed_memory
from noisette.cli.errors import INTERRUPTED, plain_errors

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.reproduce.abadi_2016.figures import Figure
    from noisette.reproduce.abadi_2016.setting import Plan
    from noisette.reproduce.section import Section
    from noisette.training import Point


class Paper(StrEnum):
    """A paper whose figures can be made again."""

    ABADI_2016 = "abadi-2016"


@plain_errors()
def reproduce(
    paper: Annotated[Paper, typer.Argument(help="abadi-2016: Deep Learning with Differential Privacy.")],
    *,
    figure: Annotated[
        int | None, typer.Option(metavar="N", help="2, 3, 4, 5 or 6.", show_default="2, which trains nothing")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="The whole grid of figures 4 and 5, not the small one. Takes some hours for each seed."
        ),
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,..", help="Seeds of the first weights, a run for each.", show_default="0,1,2; figure 5: 0"
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="The folder for runs, figures and page. Runs that it holds are not made again."
        ),
    ] = Path("runs/abadi-2016"),
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Figure 6: a safetensors file of convolutions learnt from public images.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the files of MNIST and CIFAR-10 lie.",
            show_default="$NOISETTE_DATA, then the user cache, then download",
        ),
    ] = None,
) -> None:
    """Make the figures of a paper again, with the printed numbers beside ours.

    Every finished run is one line of DIR/runs.jsonl, so a command that was stopped goes on where it was. Writes the
    figure and a page that shows it.
    """
    from noisette.reproduce.abadi_2016.figures import FIGURES, PAGE, RUNS, Asked, write
    from noisette.reproduce.abadi_2016.runs import missing, read

    number = 2 if figure is None else figure
    if number not in FIGURES:
        raise ValueError(f"no figure {number}; there are {', '.join(map(str, FIGURES))}")
    chosen = FIGURES[number]
    _check.all_of(
        lambda: _check_seeds(seeds, chosen),
        lambda: _check_grids(full, chosen),
        lambda: _check_weights(weights, chosen),
    )
    asked = Asked(_seeds(seeds) or chosen.seeds, full, str(weights) if weights else None)
    left = missing(chosen.plans(asked), read(out / RUNS))
    data = _load(chosen.data, data_dir) if left else None
    out.mkdir(parents=True, exist_ok=True)
    if data:
        try:
            _make(left, data, out / RUNS)
        except KeyboardInterrupt:
            typer.echo(f"Stopped. Finished runs are in {out / RUNS}; the same command goes on from there.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    _show(write(number, out))
    Console(soft_wrap=True).print(f"page  {out / PAGE}")
    if figure is None:
        _say_what_others_cost()


def _check_seeds(seeds: str | None, figure: Figure) -> None:
    if seeds is not None and not figure.seeds:
        raise ValueError("--seeds is for figures that train; add --figure")
    _seeds(seeds)


def _check_grids(full: bool, figure: Figure) -> None:
    if full and "full" not in figure.options:
        raise ValueError("--full is for figures with a small and a full grid: add --figure 4 or --figure 5")


def _check_weights(weights: Path | None, figure: Figure) -> None:
    if weights is not None and "weights" not in figure.options:
        raise ValueError("--weights is for the figure that begins with public weights: add --figure 6")
    if weights is None and "weights" in figure.options:
        raise ValueError(
            "this figure begins with convolutions learnt from public images: give their file with --weights; the "
            "documentation of noisette.models.pretrained tells how to make one"
        )


def _seeds(given: str | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"expected --seeds as whole numbers, such as 0,1,2, got {given!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _load(name: str, data_dir: Path | None) -> DataSet:
    from noisette.data import load

    return load(name, data_dir=data_dir)


def _make(plans: Sequence[Plan], data: DataSet, runs: Path) -> None:
    """Carry out the plans one after another, with a bar over all of them."""
    from noisette.reproduce.abadi_2016.runs import make

    keep_freed_memory()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=sum(plan.seconds for plan in plans), status="")
        before = 0.0
        for number, plan in enumerate(plans, 1):
            progress.update(task, description=f"run {number} of {len(plans)}")
            make(plan, data, runs, on_step=partial(_advance, progress, task, plan, before))
            before += plan.seconds


def _advance(progress: Progress, task: TaskID, plan: Plan, before: float, point: Point) -> None:
    from noisette.report import percent

    accuracy = "" if point.test_accuracy is None else f"test {percent(point.test_accuracy)}"
    progress.update(task, completed=before + plan.seconds * point.step / plan.steps, status=accuracy)


def _show(section: Section) -> None:
    table = Table(*section.header, title=section.title, title_justify="left", box=None, pad_edge=False)
    for row in section.rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def _say_what_others_cost() -> None:
    from noisette.report import duration
    from noisette.reproduce.abadi_2016.figures import FIGURES, Asked
    from noisette.reproduce.abadi_2016.runs import missing

    typer.echo("The others train networks, and 3, 4 and 5 share some of theirs. On one processor core, anew:")
    for number, figure in FIGURES.items():
        if figure.seeds:
            plans = missing(figure.plans(Asked(figure.seeds)), [])
            seconds = sum(plan.seconds for plan in plans)
            typer.echo(f"  --figure {number}  {len(plans)} runs, about {duration(seconds)}")
