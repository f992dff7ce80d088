"""``noisette train``: a recipe and options in, a run folder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from noisette._allocator import keep_freed_memory
from noisette.cli.errors import INTERRUPTED, TERMINATED, plain_errors

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection
    from noisette.report import Facts

Section = TypeVar("Section", "DataSection", "ModelSection", "PrivacySection", "TrainingSection")


@plain_errors()
def train(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE.toml",
            help="Settings in a file; the options below go before it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="digits, mnist, fashion-mnist, kmnist, emnist-letters, cifar10, adult; or a folder of images, a "
            ".csv or an .npz of your own.",
            show_default="digits",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cnn, linear, mlp, scattering; or package.module:callable, called with (example shape, classes).",
            show_default="what suits the data",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The run folder. An older run there is replaced.", show_default="runs/NAME of the data"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with a run that was cut short, within its budget; takes no other option.",
            show_default="start anew",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the files of built-in data lie.",
            show_default="$NOISETTE_DATA, then the user cache, then download",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="F", help="Privacy budget of the whole run, above 0.", show_default="3", rich_help_panel="Privacy"
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Probability with which epsilon may fail, below 1 / declared size.",
            show_default="digits: 1e-4, others: 1e-5",
            rich_help_panel="Privacy",
        ),
    ] = None,
    max_grad_norm: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Norm that each example's gradient is clipped to.",
            show_default="what suits the model",
            rich_help_panel="Privacy",
        ),
    ] = None,
    allow_large_delta: Annotated[
        bool,
        typer.Option(
            "--allow-large-delta",
            help="Accept a delta of 1 / declared size or more. The report says so.",
            rich_help_panel="Privacy",
        ),
    ] = False,
    epochs: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Passes over the declared size.",
            show_default="what suits the data",
            rich_help_panel="Training",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Expected batch size, in examples.",
            show_default="what suits the data",
            rich_help_panel="Training",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="F", help="Learning rate.", show_default="what suits the data", rich_help_panel="Training"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Seed of the first weights. Noise and sampling never depend on it.",
            show_default="0",
            rich_help_panel="Training",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,..",
            help="Number of classes, or their names in order.",
            rich_help_panel="Data of your own, declared",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Public number of training records; need not be exact.",
            rich_help_panel="Data of your own, declared",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="CSV: the column that holds the class.",
            show_default="label",
            rich_help_panel="Data of your own, declared",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="CSV: a second file, to test with.", rich_help_panel="Data of your own, declared"
        ),
    ] = None,
) -> None:
    """Train a classifier with differential privacy, and report what it learned and what that cost.

    Without any option: digits, a small convolutional network, epsilon 3, delta 1e-4, in a few seconds. Ctrl-C ends the
    run after the step at hand and keeps the model so far; SIGTERM puts it off, and --resume goes on with it.
    """
    if resume:
        _refuse_other_options(context)
        _carry_out(lambda: _resume(resume))
        return
    from noisette.recipe import Recipe

    base = Recipe.read(recipe) if recipe else Recipe.default_for(data or Recipe().data.name)
    settings = replace(
        base,
        data=_with(base.data, {"name": data, "classes": _classes(classes), "size": size, "label": label, "test": test}),
        model=_with(base.model, {"name": model}),
        privacy=_with(
            base.privacy,
            {
                "epsilon": epsilon,
                "delta": delta,
                "max_grad_norm": max_grad_norm,
                "allow_large_delta": allow_large_delta or None,
            },
        ),
        training=_with(base.training, {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}),
    )
    place = out or Path("runs", Path(settings.data.name).resolve().name.partition(".")[0])
    _carry_out(lambda: _run(settings, place, data_dir))


def _carry_out(work: Callable[[], tuple[Facts, Path]]) -> None:
    """Do the work and say what came of it, whole or stopped."""
    try:
        facts, place = work()
    except (KeyboardInterrupt, SystemExit) as stop:  # before the first step, pressed twice, or SIGTERM
        typer.echo("\n".join(["Stopped.", *getattr(stop, "__notes__", ["Nothing was spent."])]), err=True)
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
    _summarize(facts, place)
    if not facts.completed:
        raise typer.Exit(INTERRUPTED)


def _refuse_other_options(context: typer.Context) -> None:
    sources = {p.opts[-1]: context.get_parameter_source(p.name) for p in context.command.params if p.name}
    given = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in given if option != "--resume"]:
        raise ValueError(f"--resume goes on with a run as it was begun; leave out {', '.join(others)}")


def _with(section: Section, given: Mapping[str, object]) -> Section:
    """The section of a recipe with what the command line gave in its place."""
    return replace(section, **{key: value for key, value in given.items() if value is not None})


def _classes(given: str | None) -> int | tuple[str, ...] | None:
    if given is None:
        return None
    return int(given) if given.isdecimal() else tuple(name.strip() for name in given.split(","))


def _run(recipe: Recipe, out: Path, data_dir: Path | None) -> tuple[Facts, Path]:
    from noisette.cli.watch import Watch
    from noisette.report import RunFolder, documents, facts_of, unfinished_runs
    from noisette.training import train as train_privately

    keep_freed_memory()
    folder = RunFolder(out)
    for begun in unfinished_runs(out):
        typer.echo(f"An earlier run is unfinished. To go on with it: noisette train --resume {begun}", err=True)
    data = _load(recipe.data, data_dir)
    with folder, Watch(f"{data.name}, {recipe.model.name}") as watch:
        folder.keep_settings({"recipe": asdict(_anywhere(recipe)), "data_dir": data_dir and str(data_dir.resolve())})
        outcome = train_privately(
            recipe, data, ledger_path=folder.ledger, on_step=watch.on_step, checkpoint=folder.checkpoint
        )
        facts = facts_of(outcome)
        folder.complete(documents(facts, outcome.model))
    return facts, out


def _resume(place: Path) -> tuple[Facts, Path]:
    from noisette.cli.watch import Watch
    from noisette.recipe import Recipe
    from noisette.report import RunFolder, documents, facts_of
    from noisette.training import resume

    keep_freed_memory()
    folder = RunFolder.unfinished(place)
    settings = folder.settings
    if missing := {"recipe", "data_dir"} - settings.keys():
        raise ValueError(f"the settings in {folder.checkpoint} lack {', '.join(sorted(missing))}; restore them")
    recipe = Recipe.of(settings["recipe"], str(folder.checkpoint))
    data_dir = Path(settings["data_dir"]) if settings["data_dir"] else None
    data = _load(recipe.data, data_dir)
    with folder, Watch(f"{data.name}, {recipe.model.name}") as watch:
        outcome = resume(recipe, data, on_step=watch.on_step, checkpoint=folder.checkpoint)
        facts = facts_of(outcome)
        folder.complete(documents(facts, outcome.model))
    return facts, folder.out


def _anywhere(recipe: Recipe) -> Recipe:
    """The recipe with such paths that they can be followed from any folder."""
    from noisette.data import names

    def whole(path: str | None) -> str | None:
        return path and str(Path(path).resolve())

    data, model = recipe.data, recipe.model
    name = data.name if data.name in names() else whole(data.name)
    return replace(
        recipe,
        data=_with(data, {"name": name, "test": whole(data.test)}),
        model=_with(model, {"weights": whole(model.weights)}),
    )


def _load(section: DataSection, data_dir: Path | None) -> DataSet:
    from noisette.data import Declaration, load

    declaration = Declaration(
        classes=section.classes,
        size=section.size,
        label=section.label,
        test=Path(section.test) if section.test else None,
        ranges=section.ranges,
        categories=section.categories,
    )
    return load(section.name, data_dir=data_dir, declaration=declaration)


def _summarize(facts: Facts, out: Path) -> None:
    from noisette.report import duration, percent, power_of_ten, upward

    accuracy = "not measured" if facts.test_accuracy is None else percent(facts.test_accuracy)
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("test accuracy", accuracy),
        ("privacy", f"epsilon {upward(facts.epsilon)}, delta {power_of_ten(facts.delta)} ({facts.neighbouring})"),
        ("accountant", f"{facts.accountant.upper()}, {facts.accountant_version}"),
        ("steps", facts.progress),
        ("time", duration(facts.seconds)),
        ("report", str(out / "report.html")),
    ):
        table.add_row(name, value)
    Console(soft_wrap=True).print(table)
