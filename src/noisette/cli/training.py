"""A run of ``noisette train``: from its recipe to its folder, with a summary on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from noisette._internal.allocator import keep_freed_memory
from noisette.cli.errors import INTERRUPTED, TERMINATED

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.training.recipe import DataSection, PublicSection, Recipe
    from noisette.training.report import Facts, RunFolder

P = ParamSpec("P")


def _reported(work: Callable[P, tuple[Facts, Path]]) -> Callable[P, None]:
    """The work as a command, which reports on the terminal how it ended."""

    @wraps(work)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            facts, place = work(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit) as stop:  # before the first step, pressed twice, or SIGTERM
            typer.echo("\n".join(["Stopped.", *getattr(stop, "__notes__", ["Nothing was spent."])]), err=True)
            raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
        _summarize(facts, place)
        if not facts.completed:
            raise typer.Exit(INTERRUPTED)

    return command


@_reported
def begin(recipe: Recipe, out: Path, data_dir: Path | None) -> tuple[Facts, Path]:
    """Train by a recipe, and write a run folder.

    Raises:
        typer.Exit: the run was stopped.
    """
    from noisette.training.report import RunFolder
    from noisette.training.unfinished import in_words, unfinished_runs

    keep_freed_memory()
    folder = RunFolder(out)
    for begun in unfinished_runs(out):
        typer.echo(f"{in_words(begun)}\nThis command begins another run, whose ledger does not count it.", err=True)
    settings = {"recipe": asdict(_with_absolute_paths(recipe)), "data_dir": data_dir and str(data_dir.resolve())}
    return _train(recipe, data_dir, folder, settings), out


@_reported
def go_on(place: Path) -> tuple[Facts, Path]:
    """Continue an unfinished run with the settings that it began with.

    Raises:
        typer.Exit: the run was stopped.
    """
    from noisette.training.recipe import Recipe
    from noisette.training.report import RunFolder

    keep_freed_memory()
    folder = RunFolder.unfinished(place)
    settings = folder.settings
    if missing := {"recipe", "data_dir"} - settings.keys():
        raise ValueError(f"the settings in {folder.checkpoint} lack {', '.join(sorted(missing))}; restore them")
    recipe = Recipe.of(settings["recipe"], str(folder.checkpoint))
    return _train(recipe, Path(settings["data_dir"]) if settings["data_dir"] else None, folder), folder.out


def _train(recipe: Recipe, data_dir: Path | None, folder: RunFolder, settings: dict[str, Any] | None = None) -> Facts:
    """Train a new run, whose settings are kept in its folder; without settings, continue the run in the folder."""
    from noisette.cli.watch import Watch
    from noisette.training.loop import resume, train
    from noisette.training.report import documents, facts_of

    data, public = load_data(recipe.data, data_dir), load_public(recipe.public, data_dir)
    with folder, Watch(f"{data.name}, {recipe.model.name}") as watch:
        if settings is None:
            outcome = resume(recipe, data, public=public, on_step=watch.on_step, checkpoint=folder.checkpoint)
        else:
            folder.keep_settings(settings)
            outcome = train(
                recipe,
                data,
                public=public,
                ledger_path=folder.ledger,
                on_step=watch.on_step,
                checkpoint=folder.checkpoint,
            )
        facts = facts_of(outcome)
        folder.complete(documents(facts, outcome.model))
    return facts


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that a run can be continued from any folder."""
    from noisette.data import names

    def whole(path: str | None) -> str | None:
        return path and str(Path(path).resolve())

    def named(name: str) -> str:
        return name if name in names() else str(Path(name).resolve())

    data, model, public = recipe.data, recipe.model, recipe.public
    return replace(
        recipe,
        data=replace(data, name=named(data.name), test=whole(data.test)),
        model=replace(model, weights=whole(model.weights)),
        public=replace(public, data=public.data and named(public.data)),
    )


def load_data(section: DataSection, data_dir: Path | None) -> DataSet:
    """The data set that a recipe names, with the declarations of the recipe."""
    from noisette.data import Declaration, load

    declaration = Declaration(
        classes=section.classes,
        size=section.size,
        label=section.label,
        test=Path(section.test) if section.test else None,
        ranges=section.ranges,
        categories=section.categories,
        users=section.users,
    )
    return load(section.name, data_dir=data_dir, declaration=declaration)


def load_public(section: PublicSection, data_dir: Path | None) -> DataSet | None:
    """The data set of the public examples, if there are any; the size of the user's own files need not be declared."""
    from noisette.data import Declaration, load, names

    if section.data is None:
        return None
    own = section.data not in names()
    declaration = Declaration(classes=section.classes, size=section.examples if own else None)
    return load(section.data, data_dir=data_dir, declaration=declaration)


def _summarize(facts: Facts, out: Path) -> None:
    from noisette.training.report import duration, percent, power_of_ten, upward

    accuracy = "not measured" if facts.test_accuracy is None else percent(facts.test_accuracy)
    privacy = facts.recipe.privacy
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("test accuracy", accuracy),
        ("privacy", f"epsilon {upward(facts.epsilon)}, delta {power_of_ten(privacy.delta)} ({facts.neighbouring})"),
        ("accountant", f"{privacy.accountant.upper()}, {facts.accountant_version}"),
        ("steps", facts.progress),
        ("time", duration(facts.seconds)),
        ("report", str(out / "report.html")),
    ):
        table.add_row(name, value)
    Console(soft_wrap=True).print(table)
