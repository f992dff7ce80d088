"""``python -m papers``: reproduce figures and tables of a paper, with the printed numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from noisette import errors as checks
from noisette.cli.options import INTERRUPTED, plain_errors
from noisette.training import keep_freed_memory

if TYPE_CHECKING:
    from noisette.data import DataSet
    from papers.paper import Job, Paper, Part
    from papers.section import Section


class Name(StrEnum):
    """A paper that can be reproduced."""

    ABADI_2016 = "abadi-2016"
    DAVODY_2020 = "davody-2020"
    BETHUNE_2024 = "bethune-2024"
    LEE_KIFER_2020 = "lee-kifer-2020"


@plain_errors()
def reproduce(
    paper: Annotated[
        Name,
        typer.Argument(
            help="abadi-2016: Deep Learning with Differential Privacy. davody-2020: normalisation layers and noise. "
            "bethune-2024: training without clipping. lee-kifer-2020: the speed of private steps."
        ),
    ],
    *,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="abadi-2016: 2 to 6. davody-2020: 1, or norms (every norm, sound and unsound). bethune-2024: pareto, "
            "robustness or speed. lee-kifer-2020: 5 to 9.",
            show_default="one that trains nothing, if there is one",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="summary: the printed numbers beside ours. davody-2020: 2 to 7. bethune-2024: tabular, best or "
            "digits. lee-kifer-2020: memory.",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="NAME,..", help="Only these rows of the table.", show_default="those that take hours"),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The whole grid, not only what runs in about an hour. Takes hours, or a GPU.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N,N,..", help="Seeds of the initial weights, one run each.", show_default="0,1,2 or 0"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for runs, figures and page. Finished runs in it are not repeated.",
            show_default="runs/PAPER",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public weights for networks that start from them: a safetensors file.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the files of the data sets.",
            show_default="$NOISETTE_DATA, then the user cache, then download",
        ),
    ] = None,
) -> None:
    """Reproduce figures and tables of a paper, with the printed numbers beside ours.

    Every finished run is one line of DIR/runs.jsonl, so a command that was stopped continues with the missing runs. The
    figure or table is written into a page. Without --figure and --table, all of them are listed with their run times.
    """
    from papers.paper import Asked
    from papers.run_file import RUNS

    chosen = _paper(paper)
    name = _part_name(chosen, figure, table)
    out = out or Path("runs") / chosen.name
    if name is not None:
        part = chosen.parts[name]
        checks.all_of(
            lambda: _check_seeds(seeds, part),
            lambda: _check_full(full, chosen, part),
            lambda: _check_rows(rows, part),
            lambda: _check_weights(weights, rows, chosen, part),
        )
        asked = Asked(_seeds(seeds) or part.seeds, full, str(weights) if weights else None, _names(rows))
        left = part.missing(asked, chosen.read(out / RUNS))
        data = _load(left, data_dir)
        out.mkdir(parents=True, exist_ok=True)
        if left:
            try:
                _make(left, data, out / RUNS)
            except KeyboardInterrupt:
                typer.echo(
                    f"Stopped. Finished runs are in {out / RUNS}; the same command continues with the rest.", err=True
                )
                raise typer.Exit(INTERRUPTED) from None
        _show(chosen.write(name, out))
        Console(soft_wrap=True).print(f"page  {out / chosen.page}")
    if figure is None and table is None:
        _list_run_times(chosen)


def _paper(name: Name) -> Paper[Any]:
    if name is Name.ABADI_2016:
        from papers.abadi_2016.figures import PAPER
    elif name is Name.DAVODY_2020:
        from papers.davody_2020.parts import PAPER
    elif name is Name.LEE_KIFER_2020:
        from papers.lee_kifer_2020.parts import PAPER
    else:
        from papers.bethune_2024.parts import PAPER
    return PAPER


def _part_name(paper: Paper[Any], figure: str | None, table: str | None) -> str | None:
    """Return the name of the requested figure or table, or of the paper's first one."""
    if figure is not None and table is not None:
        raise ValueError("give --figure or --table, not both")
    if figure is None and table is None:
        return paper.first
    kind, number = ("figure", figure) if table is None else ("table", table)
    there = [name.removeprefix(f"{kind}-") for name in paper.parts if name.startswith(f"{kind}-")]
    if number not in there:
        raise ValueError(f"no {kind} {number}; there are {', '.join(there) or f'no {kind}s'}")
    return f"{kind}-{number}"


def _check_seeds(seeds: str | None, part: Part[Any]) -> None:
    if seeds is not None and not part.seeds:
        raise ValueError("--seeds is for figures that train networks; add --figure")
    _seeds(seeds)


def _check_full(full: bool, paper: Paper[Any], part: Part[Any]) -> None:
    if full and "full" not in part.options:
        raise ValueError(f"--full is for parts with a small and a full grid: add {_options_of(paper, 'full')}")


def _check_rows(rows: str | None, part: Part[Any]) -> None:
    if rows is None:
        return
    if not part.rows:
        raise ValueError("--rows is for tables whose rows can be run separately; add --table")
    if unknown := [name for name in _names(rows) or () if name not in part.rows]:
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(part.rows)}")


def _check_weights(weights: Path | None, rows: str | None, paper: Paper[Any], part: Part[Any]) -> None:
    if weights is not None and "weights" not in part.options:
        raise ValueError(f"--weights is for parts that start from public weights: add {_options_of(paper, 'weights')}")
    if weights is None and "weights" in part.options:
        raise ValueError(
            "the network starts from convolutions learnt from public images: give their file with --weights; the "
            "documentation of papers.networks.cifar_tutorial explains how to make one"
        )
    if weights is not None and part.rows and len(_names(rows) or ()) != 1:
        raise ValueError(f"a file of weights fits one network: add --rows with one of {', '.join(part.rows)}")


def _options_of(paper: Paper[Any], option: str) -> str:
    """List the parts of a paper that accept an option, as they are given on the command line."""
    named = (name.replace("-", " ", 1) for name, part in paper.parts.items() if option in part.options)
    return " or ".join(f"--{name}" for name in named) or "another paper"


def _seeds(given: str | None) -> tuple[int, ...] | None:
    parts = _names(given)
    if parts is None:
        return None
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"expected --seeds as whole numbers, such as 0,1,2, got {given!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(dict.fromkeys(part.strip() for part in given.split(",")))


def _load(jobs: Sequence[Job], data_dir: Path | None) -> dict[str, DataSet]:
    """Load the data sets that the jobs need."""
    from noisette.data import load
    from papers.bethune_2024 import adbench
    from papers.glove import ag_news_by_vectors

    def of(name: str) -> DataSet:
        if name == "ag-news":
            return ag_news_by_vectors(data_dir)
        return adbench.load(name, data_dir) if name.startswith(adbench.PREFIX) else load(name, data_dir=data_dir)

    return {name: of(name) for name in dict.fromkeys(name for job in jobs for name in job.sets)}


def _make(jobs: Sequence[Job], data: Mapping[str, DataSet], runs: Path) -> None:
    """Run the jobs one after another, with one progress bar for all."""
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
        task = progress.add_task("", total=sum(job.seconds for job in jobs), status="")
        before = 0.0
        for number, job in enumerate(jobs, 1):
            progress.update(task, description=f"run {number} of {len(jobs)}")
            job.make(data, runs, partial(_advance, progress, task, job.seconds, before))
            before += job.seconds


def _advance(
    progress: Progress, task: TaskID, seconds: float, before: float, share: float, accuracy: float | None
) -> None:
    from noisette.training.report.facts import percent

    progress.update(task, completed=before + seconds * share, status="" if accuracy is None else percent(accuracy))


def _show(section: Section) -> None:
    table = Table(*section.header, title=section.title, title_justify="left", box=None, pad_edge=False)
    for row in section.rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def _list_run_times(paper: Paper[Any]) -> None:
    from noisette.training.report.facts import duration
    from papers.paper import Asked

    typer.echo("These parts take time, and some share runs. Time on one processor core, from scratch:")
    for name, part in paper.parts.items():
        if jobs := part.missing(Asked(part.seeds), []):
            seconds = sum(job.seconds for job in jobs)
            typer.echo(f"  --{name.replace('-', ' ', 1)}  {len(jobs)} runs, about {duration(seconds)}")
