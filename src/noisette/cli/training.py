"""A run of ``noisette train``: from its recipe to its folder, with a summary on the terminal."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from noisette.cli.options import INTERRUPTED, TERMINATED
from noisette.training.allocator import keep_freed_memory

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.ranks import AnyRanks
    from noisette.training.recipe import Recipe
    from noisette.training.report import Facts, RunFolder


_KEY_BYTES = 32  # of the key that decides which records are held out


def begin(recipe: Recipe, out: Path, data_dir: Path | None, as_json: bool) -> None:
    """Train by a recipe, and write a run folder; on several ranks, rank 0 alone writes and reports.

    Args:
        recipe: the settings.
        out: the folder.
        data_dir: where built-in data sets are looked for.
        as_json: whether the result is printed as JSON instead of a table.

    Raises:
        typer.Exit: the run was stopped.
    """
    report(lambda: _begin(recipe, out, data_dir), as_json)


def go_on(place: Path, as_json: bool) -> None:
    """Continue an unfinished run with the settings that it began with.

    Raises:
        typer.Exit: the run was stopped.
    """
    report(lambda: _go_on(place), as_json)


def report(work: Callable[[], tuple[Facts, Path] | None], as_json: bool) -> None:
    """Do the work, and report how it ended; nothing where the work returns nothing."""
    try:
        done = work()
    except (KeyboardInterrupt, SystemExit) as stop:  # before the first step, pressed twice, or SIGTERM
        typer.echo("\n".join(["Stopped.", *getattr(stop, "__notes__", ["Nothing was spent."])]), err=True)
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
    if done is None:
        return
    facts, place = done
    if as_json:
        typer.echo(json.dumps({"folder": str(place), **json.loads(facts.as_json())}, indent=2))
    else:
        _summarize(facts, place)
    if not facts.completed:
        raise typer.Exit(INTERRUPTED)


def _begin(recipe: Recipe, out: Path, data_dir: Path | None) -> tuple[Facts, Path] | None:
    from noisette.training.report import RunFolder

    keep_freed_memory()
    with on_ranks() as ranks:
        with ranks.unanimous("the run folder"):
            folder = RunFolder(out)
        if ranks.rank:
            return _follow(ranks, recipe, data_dir)
        mention_others(out, "This command begins another run, whose ledger does not count it.")
        settings = {
            "recipe": asdict(_with_absolute_paths(recipe)),
            "data_dir": data_dir and str(data_dir.resolve()),
            "holdout_key": secrets.token_hex(_KEY_BYTES),
        }
        return _train(ranks, recipe, data_dir, folder, settings), out


def mention_others(out: Path, ending: str) -> None:
    """Say on standard error which runs have begun or ended at this place; no ledger counts the runs of another one."""
    from noisette.training.unfinished import in_words, unfinished_runs

    others = [in_words(begun) for begun in unfinished_runs(out)]
    if out.exists():
        others.append(
            f"{out} is an older run, and will be kept beside the new one, as {out}.replaced-1 or -2 and so on."
        )
    for other in others:
        typer.echo(f"{other}\n{ending}", err=True)


def mention_replaced(folder: RunFolder) -> None:
    """Say on standard error where the older run at the place of a new one is kept, if there was one."""
    if folder.replaced:
        typer.echo(
            f"The older run is now {folder.replaced}. If it is about the same records, its privacy cost adds to "
            "that of this run.",
            err=True,
        )


def _go_on(place: Path) -> tuple[Facts, Path] | None:
    from noisette.training.recipe import Recipe
    from noisette.training.report import RunFolder

    keep_freed_memory()
    with on_ranks() as ranks:
        with ranks.unanimous("the run folder"):
            folder = RunFolder.unfinished(place)
            settings = folder.settings
            if missing := {"recipe", "data_dir", "holdout_key"} - settings.keys():
                raise ValueError(f"the settings in {folder.checkpoint} lack {', '.join(sorted(missing))}; restore them")
            recipe = Recipe.of(settings["recipe"], str(folder.checkpoint))
            data_dir = Path(settings["data_dir"]) if settings["data_dir"] else None
        if ranks.rank:
            return _follow(ranks, recipe, data_dir)
        return _train(ranks, recipe, data_dir, folder), folder.out


def _train(
    ranks: AnyRanks,
    recipe: Recipe,
    data_dir: Path | None,
    folder: RunFolder,
    settings: dict[str, Any] | None = None,
) -> Facts:
    """Train a new run, whose settings are kept in its folder; without settings, continue the run in the folder."""
    from noisette.cli.watch import Watch
    from noisette.training.loop import resume, train
    from noisette.training.report import documents, facts_of

    key = bytes.fromhex((folder.settings if settings is None else settings)["holdout_key"])
    data, public = _loaded(ranks, recipe, data_dir, key)
    with folder, Watch(f"{data.name}, {recipe.model.name}") as watch:
        ranks.from_first("the checkpoint folder", lambda: [str(folder.checkpoint), settings is None])
        if settings is None:
            outcome = resume(
                recipe, data, public=public, on_step=watch.on_step, checkpoint=folder.checkpoint, ranks=ranks
            )
        else:
            folder.keep_settings(settings)
            outcome = train(
                recipe,
                data,
                public=public,
                ledger_path=folder.ledger,
                on_step=watch.on_step,
                checkpoint=folder.checkpoint,
                ranks=ranks,
            )
        facts = facts_of(outcome)
        folder.complete(documents(facts, outcome.model))
    mention_replaced(folder)
    return facts


def _follow(ranks: AnyRanks, recipe: Recipe, data_dir: Path | None) -> None:
    """The part of another rank than 0 in a run: it computes, and shows and writes nothing."""
    from noisette.cli.watch import Watch
    from noisette.training.loop import resume, train

    data, public = _loaded(ranks, recipe, data_dir)
    place, resumed = ranks.from_first("the checkpoint folder", lambda: None)
    checkpoint = Path(place)
    with Watch("", shown=False) as watch:
        if resumed:
            resume(recipe, data, public=public, on_step=watch.on_step, checkpoint=checkpoint, ranks=ranks)
        else:
            train(
                recipe,
                data,
                public=public,
                ledger_path=None,
                on_step=watch.on_step,
                checkpoint=checkpoint,
                ranks=ranks,
            )


def _loaded(
    ranks: AnyRanks, recipe: Recipe, data_dir: Path | None, holdout_key: bytes = b""
) -> tuple[DataSet, DataSet | None]:
    """The records and the public examples, which every rank loads; rank 0 has the key of the records held out."""
    from noisette.training.saved_model import load_data, load_public

    key = bytes.fromhex(ranks.from_first("the key of the records held out", holdout_key.hex))
    with ranks.unanimous("the data"):
        return load_data(recipe, data_dir, holdout_key=key), load_public(recipe, data_dir)


@contextmanager
def on_ranks() -> Iterator[AnyRanks]:
    """The ranks that torchrun has started, or this process alone.

    An error that all ranks raise is reported by rank 0, which fails for all of them: when the first process fails,
    torchrun ends the others, and might end rank 0 before it has said why.
    """
    from noisette.ranks import launched

    with launched() as ranks:
        try:
            yield ranks
        except (KeyboardInterrupt, SystemExit) as stop:
            if ranks.rank:
                raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from stop
            raise
        except Exception as error:
            if ranks.rank and ranks.is_known_to_all(error):
                raise typer.Exit(0) from error
            raise


def scaled(recipe: Recipe, factor: int, data_dir: Path | None) -> Recipe:
    """The recipe of a small run that stands for the one by this recipe; the data are read for their declared size."""
    from noisette.training.saved_model import load_data
    from noisette.training.simulation import scaled_down

    size = load_data(recipe, data_dir, holdout_key=secrets.token_bytes(_KEY_BYTES)).declared_size
    return scaled_down(recipe, factor, size)


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that a run can be continued from any folder."""
    from noisette.data import names
    from noisette.nn.models.factory import is_folder_of_model

    def whole(path: str | None) -> str | None:
        return path and str(Path(path).resolve())

    def named(name: str) -> str:
        return name if name in names() else str(Path(name).resolve())

    def whole_model(name: str) -> str:
        return str(Path(name).resolve()) if is_folder_of_model(name) else name

    data, model, public = recipe.data, recipe.model, recipe.public
    return replace(
        recipe,
        data=replace(data, name=named(data.name), test=whole(data.test)),
        model=replace(model, name=whole_model(model.name), weights=whole(model.weights)),
        public=replace(public, data=public.data and named(public.data)),
    )


def _summarize(facts: Facts, out: Path) -> None:
    from noisette.training.report import duration, power_of_ten, rows_of_search, rows_of_tests, upward

    privacy = facts.recipe.privacy
    lines = [
        *(rows_of_tests(facts) or [("test accuracy", "not measured")]),
        ("privacy", f"epsilon {upward(facts.epsilon)}, delta {power_of_ten(privacy.delta)} ({facts.neighbouring})"),
        ("accountant", f"{privacy.accountant.upper()}, {facts.accountant_version}"),
        ("steps", facts.progress),
        *(rows_of_search(facts.search) if facts.search else []),
        *([] if facts.seconds is None else [("time", duration(facts.seconds))]),
        ("report", str(out / "report.html")),
    ]
    if (factor := facts.recipe.training.simulates) > 1:
        lines.insert(2, ("simulation", f"stands for a run {factor} times as large; the epsilon above is its own"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:<{width}}  {value}")
