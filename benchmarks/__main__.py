"""``python -m benchmarks``: time and memory of private training on this machine, as ratios to plain training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from noisette import errors as checks
from noisette.cli.options import INTERRUPTED, option, plain_errors, whole_numbers
from noisette.training import keep_freed_memory

if TYPE_CHECKING:
    from benchmarks.steps.cell import Settings
    from benchmarks.steps.experiments import Experiment
    from benchmarks.steps.report import Report

_of_experiment = partial(option, default="those of the experiment")


class Device(StrEnum):
    """The device on which steps are measured."""

    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """The precision in which steps are computed."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command()
@plain_errors()
def bench(
    *,
    experiments: Annotated[
        str, option("A,B,..", "targets, run, fig5, fig6, fig7, fig8, fig9, memory, large, clipless, clipless-memory.")
    ] = "targets,memory",
    models: Annotated[
        str | None,
        _of_experiment(
            "A,B,..",
            "Only these models: mlp, mlp-4, mlp-6, mlp-8, cnn, rnn, lstm, gru, transformer, resnet18-cifar, "
            "vgg16-cifar, resnet18, resnet34, resnet50, resnet101, vgg11, vgg13, vgg16, vgg19, vit-small, "
            "bert-base, gpt2, lipschitz-dense, lipschitz-mixer, lipschitz-conv.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        _of_experiment(
            "A,B,..",
            "Only these methods, and always plain: plain-compiled, compiled, captured, BookKeeping, ReweightGP, "
            "PerExampleLoop, Vmap, Clipless, nxBP, run, run-eager, Opacus-hooks, fastDP-MixOpt, ...",
        ),
    ] = None,
    batch: Annotated[str | None, _of_experiment("N,N,..", "Batch sizes, in examples.")] = None,
    image: Annotated[
        str | None, _of_experiment("N,N,..", "Width of images in pixels, for models that accept any size: at least 32.")
    ] = None,
    rounds: Annotated[int, option("N", "Number of measured turns of each method.")] = 15,
    seconds: Annotated[
        float | None,
        option("SECONDS", "End the rounds of a model after this time, once there are three.", default="no end"),
    ] = None,
    threads: Annotated[int | None, option("N", "Number of processor threads.", "torch's own")] = None,
    device: Annotated[
        Device | None, typer.Option(help="Device of the steps.", show_default="cuda if there is one")
    ] = None,
    dtype: Annotated[Precision, typer.Option(help="Precision of the steps: bfloat16 by autocast.")] = Precision.FLOAT32,
    fastdp: Annotated[
        Path | None,
        option("DIR", "Checkout of the fast-differential-privacy repository, to be measured too.", default="none"),
    ] = None,
    out: Annotated[Path, option("DIR", "Folder for results; those of an earlier run are replaced.")] = Path("bench"),
) -> None:
    """Measure time per step and peak memory of private training, by several methods, against plain training.

    Plain training is measured eager and compiled by torch.compile, and each ratio says which of them it is to. Opacus
    is measured where it is installed. Writes one JSON file and one figure for each experiment, and bench.html with all
    of them, after each model. The experiments follow Lee & Kifer 2020. Ctrl-C keeps what is completed.
    """
    checks.count(rounds=rounds)
    if threads is not None:
        checks.count(threads=threads)
    if seconds is not None:
        checks.positive(seconds=seconds)
    batches = None if batch is None else whole_numbers("batch", batch, "32,64")
    images = None if image is None else whole_numbers("image", image, "32,64")
    if images and min(images) < 32:
        raise ValueError(f"expected --image as whole numbers of at least 32, got {image!r}")
    has_fastdp = _find_fastdp(fastdp)
    chosen = _experiments(experiments, models, methods, batches, images, fastdp=has_fastdp)
    settings = _settings(rounds, threads, device, seconds, fastdp, dtype)
    out.mkdir(parents=True, exist_ok=True)
    keep_freed_memory()
    try:
        _run(chosen, settings, out)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. What is completed is in {out}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    Console(soft_wrap=True).print(f"report  {out / 'bench.html'}")


def _experiments(
    names: str,
    models: str | None,
    methods: str | None,
    batches: Sequence[int] | None,
    images: Sequence[int] | None,
    *,
    fastdp: bool,
) -> dict[str, Experiment]:
    """The chosen experiments that have at least one of the models.

    Raises:
        ValueError: a name is unknown, fastDP is named and not there, or no experiment has any of the models.
    """
    from benchmarks.steps.experiments import EXPERIMENTS
    from benchmarks.steps.methods import FASTDP, METHODS
    from benchmarks.steps.models import MODELS

    asked, only_models, only_methods = _names(names), _names(models), _names(methods)
    checks.all_of(
        partial(_known, "experiment", asked, EXPERIMENTS),
        partial(_known, "model", only_models, MODELS),
        partial(_known, "method", only_methods, METHODS),
    )
    if not fastdp and (named := [name for name in only_methods or () if name in FASTDP]):
        raise ValueError(f"{', '.join(named)} needs fastDP: give --fastdp the folder of a checkout of it")
    offered = {name: _offered(EXPERIMENTS[name], fastdp) for name in asked or ()}
    chosen = {name: each.only(only_models, only_methods, batches, images) for name, each in offered.items()}
    if kept := {name: experiment for name, experiment in chosen.items() if experiment.cells}:
        return kept
    present = dict.fromkeys(cell.name for name in chosen for cell in EXPERIMENTS[name].cells)
    raise ValueError(f"no model {models} in {', '.join(chosen)}; there are {', '.join(present)}")


def _offered(experiment: Experiment, fastdp: bool) -> Experiment:
    return experiment.with_fastdp() if fastdp else experiment


def _find_fastdp(checkout: Path | None) -> bool:
    """Whether fastDP is to be measured: by the path of a checkout, or where it is installed."""
    from benchmarks.steps import peer_fastdp

    if checkout is not None:
        peer_fastdp.look_in(checkout)
    return peer_fastdp.is_found()


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(name.strip() for name in given.split(","))


def _known(kind: str, given: Sequence[str] | None, valid: Collection[str]) -> None:
    if unknown := [name for name in given or () if name not in valid]:
        raise ValueError(f"no {kind} {', '.join(map(repr, unknown))}; there are {', '.join(valid)}")


def _settings(
    rounds: int,
    threads: int | None,
    device: Device | None,
    seconds: float | None,
    fastdp: Path | None,
    dtype: Precision,
) -> Settings:
    import torch

    from benchmarks.steps.cell import Settings

    has_cuda = torch.cuda.is_available()
    if device == Device.CUDA and not has_cuda:
        raise ValueError("torch finds no CUDA device on this machine; choose --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = device or (Device.CUDA if has_cuda else Device.CPU)
    return Settings(rounds, torch.get_num_threads(), chosen, seconds, fastdp, dtype)


def _run(experiments: Mapping[str, Experiment], settings: Settings, out: Path) -> None:
    from benchmarks.steps.report import measure
    from benchmarks.steps.results import write

    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name, experiment in experiments.items():
            task = progress.add_task(f"{name}, {len(experiment.cells)} models and sizes", total=len(experiment.cells))
            report: Report = {}
            for report in measure(name, experiment, settings, partial(progress.advance, task)):  # it grows
                write(report, out)
            progress.remove_task(task)
            _show(report)


def _show(report: Report) -> None:
    """Print a line for each cell: plain training, and the ratios of the other methods, the lowest first."""
    from benchmarks.steps.comparison import summary
    from benchmarks.steps.methods import PLAIN
    from benchmarks.steps.report import cell_label

    ratios = "ratio to plain eager (to plain compiled)"
    table = Table(
        "",
        "plain eager",
        "plain compiled",
        ratios,
        title=report["title"],
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for cell in report["cells"]:
        private = {name: row for name, row in cell["methods"].items() if name not in PLAIN}
        measured = sorted((row["ratio"], name) for name, row in private.items() if "ratio" in row)
        failed = [f"{name} failed" for name, row in private.items() if "error" in row]
        shown = [f"{name} {_ratios(private[name])}" for _, name in measured]
        table.add_row(
            cell_label(cell), *(_plain(cell, name, report["unit"]) for name in PLAIN), ", ".join(shown + failed)
        )
    console = Console(highlight=False)
    console.print(table)
    for sentence in summary(report):
        console.print(sentence)


def _plain(cell: Mapping[str, Any], name: str, unit: str) -> str:
    from benchmarks.steps.results import amount

    row = cell["methods"].get(name)
    return "" if row is None else amount(row[unit], unit) if unit in row else "failed"


def _ratios(row: Mapping[str, Any]) -> str:
    compiled = f" ({row['ratio_compiled']:.2f})" if "ratio_compiled" in row else ""
    return f"{row['ratio']:.2f}{compiled}"


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
