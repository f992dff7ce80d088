"""``noisette train``: its options, the recipe that they make, and the run, with a summary on the terminal."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from noisette import data as data_sets
from noisette.accounting.registry import described
from noisette.cli.options import (
    INTERRUPTED,
    TERMINATED,
    DataDir,
    FactsAsJson,
    flag,
    holdout_option,
    number_or_names,
    numbers,
    option,
    out_option,
    plain_errors,
    whole_numbers,
)
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.nn.models import names as model_names
from noisette.training import keep_freed_memory
from noisette.training.recipe import (
    BATCH_NORMS,
    BATCHES,
    OPTIMIZERS,
    AugmentationSection,
    Recipe,
    accountant_names,
    default_recipe,
    read_schema,
)
from noisette.training.records import check_names
from noisette.training.run_folder import RunFolder, in_words, unfinished_runs

if TYPE_CHECKING:
    from noisette.ranks import AnyRanks
    from noisette.training.report.facts import Facts

_Number: TypeAlias = float | None
_Whole: TypeAlias = int | None
_Text: TypeAlias = str | None
_SUITED = "what suits the data"
_KEY_BYTES = 32  # of the key that decides which records are held out
_privacy = partial(option, panel="Privacy")
_training = partial(option, panel="Training")
_norm = partial(option, panel="Batch norm")
_declared = partial(option, panel="Data of your own, declared")
# Fields of a recipe that are options under the same name.
_DATA = (
    *("classes", "target", "image_size", "size", "label", "unit", "text", "tokens", "decimal", "grey", "test"),
    *("skip_unlabelled", "holdout", "users", "records_per_user", "public_users"),
)
_PRIVACY = ("epsilon", "delta", "max_grad_norm", "clipping", "engine", "allow_large_delta")
_TRAINING = ("epochs", "batch_size", "batches", "largest_batch", "bands", "compile", "optimizer", "lr", "seed")
# The tables of a recipe whose fields are options, each field with its option.
_OPTIONS: dict[str, dict[str, str]] = {
    "data": {"name": "data"} | {name: name for name in _DATA},
    "model": {"name": "model", "batch_norm": "batch_norm"},
    "public": {"data": "public", "examples": "public_examples"},
    "privacy": {name: name for name in _PRIVACY},
    "training": {name: name for name in _TRAINING},
}


@plain_errors()
def train(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE.toml",
            help="Settings in a file; the options below override it. The accountant is set there alone: "
            f"privacy.accountant is one of {', '.join(accountant_names())}.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    data: Annotated[
        _Text,
        option(
            "NAME",
            f"{', '.join(data_sets.names())}; or a folder of images, a .csv, .jsonl, .parquet, .xlsx or .npz "
            "of your own.",
            "digits",
        ),
    ] = None,
    model: Annotated[
        _Text,
        option(
            "NAME",
            f"{', '.join(model_names())}; or package.module:callable, called with (example shape, classes).",
            _SUITED,
        ),
    ] = None,
    out: Annotated[Path | None, out_option("runs/NAME of the data")] = None,
    resume: Annotated[
        Path | None, option("DIR", "Continue an unfinished run, within its budget; takes no other option.", "a new run")
    ] = None,
    data_dir: DataDir = None,
    epsilon: Annotated[_Number, _privacy("F", "Privacy budget of the whole run, above 0.", "3")] = None,
    delta: Annotated[
        _Number,
        _privacy(
            "F", "Probability with which epsilon may fail, below 1 / declared size.", "digits: 1e-4, others: 1e-5"
        ),
    ] = None,
    max_grad_norm: Annotated[
        _Number,
        _privacy("F", "Clipping norm: the most that the gradient of one example keeps.", "what suits the model"),
    ] = None,
    clipping: Annotated[_Text, _privacy("NAME", f"{described(CLIPPING_RULES)}.", "flat")] = None,
    engine: Annotated[
        _Text,
        _privacy(
            "NAME",
            f"How the clipped sum is computed; every engine gives the same sum. {described(ENGINES)}.",
            "book-keeping",
        ),
    ] = None,
    allow_large_delta: Annotated[
        bool,
        flag(
            "--allow-large-delta",
            "Accept a delta of 1 / declared size or more. The report mentions it.",
            panel="Privacy",
        ),
    ] = False,
    epochs: Annotated[_Number, _training("F", "Passes over the declared size.", _SUITED)] = None,
    batch_size: Annotated[_Whole, _training("N", "Expected batch size, in examples.", _SUITED)] = None,
    batches: Annotated[_Text, _training("NAME", f"How batches are drawn. {described(BATCHES)}.", "poisson")] = None,
    largest_batch: Annotated[_Whole, _training("N", "Truncated batches: the most examples of a batch.")] = None,
    bands: Annotated[
        _Whole, _training("N", "Cyclic batches: the steps over which noise is correlated; more take more memory.")
    ] = None,
    compile: Annotated[
        _Text,
        _training(
            "NAME",
            "Whether the step is captured as a graph and compiled: auto, where the run is long enough to repay it; "
            "yes, which waits for it; or no.",
            "auto",
        ),
    ] = None,
    optimizer: Annotated[_Text, _training("NAME", f"How gradients are used. {described(OPTIMIZERS)}.", _SUITED)] = None,
    lr: Annotated[_Number, _training("F", "Learning rate.", _SUITED)] = None,
    views: Annotated[
        _Whole,
        _training(
            "N", "Views of an image, mirrored unless the recipe says otherwise, whose mean gradient is clipped.", "1"
        ),
    ] = None,
    simulate: Annotated[
        _Whole,
        _training(
            "K",
            "Train with batch, epochs and noise divided by K, to choose settings. This run has another, larger "
            "epsilon, which is charged and reported.",
        ),
    ] = None,
    seed: Annotated[
        _Whole, _training("N", "Seed of the first weights. Noise and sampling never depend on it.", "0")
    ] = None,
    batch_norm: Annotated[
        _Text,
        _norm(
            "NAME",
            f"What replaces each batch norm of the model. {described(BATCH_NORMS)}.",
            "batch norm stays, and is refused",
        ),
    ] = None,
    public: Annotated[
        _Text, _norm("NAME", "Data set of the public examples that give the statistics. It has no privacy guarantee.")
    ] = None,
    public_examples: Annotated[_Whole, _norm("N", "Number of public examples.", "128")] = None,
    columns: Annotated[
        Path | None,
        typer.Option(
            metavar="SCHEMA.toml",
            help="What is declared about each column of a CSV, and the facts below; noisette schema writes one.",
            exists=True,
            dir_okay=False,
            show_default=False,
            rich_help_panel="Data of your own, declared",
        ),
    ] = None,
    classes: Annotated[_Text, _declared("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[
        _Text, _declared("LOW,HIGH", "Instead of classes: bounds of a number to predict; others are clipped.")
    ] = None,
    unit: Annotated[_Text, _declared("TEXT", "The unit of that number, for the report.")] = None,
    size: Annotated[_Whole, _declared("N", "Public number of training records; need not be exact.")] = None,
    label: Annotated[_Text, _declared("COLUMN", "CSV: the column of the class or number.", "label")] = None,
    text: Annotated[_Text, _declared("COLUMN", "CSV: the column of a text, which is the only input.")] = None,
    decimal: Annotated[_Text, _declared("SIGN", "CSV: what stands before decimals, a point or a comma.", ".")] = None,
    skip_unlabelled: Annotated[
        bool,
        flag(
            "--skip-unlabelled",
            "CSV: leave out rows without a label, instead of refusing them.",
            panel="Data of your own, declared",
        ),
    ] = False,
    image_size: Annotated[
        _Text, _declared("WxH", "Images: scale and cut each to this size, in colour.", "all must have one size")
    ] = None,
    grey: Annotated[
        bool,
        flag("--grey", "Images: with --image-size, bring each to grey instead.", panel="Data of your own, declared"),
    ] = False,
    tokens: Annotated[_Whole, _declared("N", "Texts: how many words of each are used.", "64")] = None,
    test: Annotated[_Text, _declared("FILE", "CSV: a second file, to test with.")] = None,
    holdout: Annotated[
        _Number,
        holdout_option(
            "The share of records drawn at random to test with. Test figures on them are not private.",
            panel="Data of your own, declared",
        ),
    ] = None,
    users: Annotated[
        _Text,
        _declared("COLUMN", "CSV: the column of the user of a record. The guarantee is then for users.", "for records"),
    ] = None,
    records_per_user: Annotated[_Whole, _declared("K", "The most records of one user that are used.")] = None,
    public_users: Annotated[_Whole, _declared("N", "Number of users, if it is public: it may save noise.")] = None,
    as_json: FactsAsJson = False,
) -> None:
    """Train a classifier with differential privacy, and report its accuracy and its privacy cost.

    `noisette train --data mnist --epsilon 3`

    `noisette train --data photos --classes cat,dog --size 20000 --model resnet-18 --batch-norm group`

    Without any option: digits, a small convolutional network, epsilon 3, delta 1e-4, in a few seconds. Ctrl-C ends the
    run after the current step and keeps the model so far. SIGTERM saves a checkpoint and exits; --resume continues it.
    """
    if resume:
        _refuse_other_options(context)
        RunFolder.unfinished(resume)  # refuses before torch is imported, which takes seconds
        report(lambda: _go_on(resume), as_json)
        return
    given = {name: value for name, value in context.params.items() if value is not None and value is not False}
    if classes is not None:
        given["classes"] = number_or_names(classes)
    if target is not None:
        given["target"] = numbers("target", target, "0,120", count=2)
    if image_size is not None:
        given["image_size"] = whole_numbers("image-size", image_size.replace("x", ","), "64x48")
    tables = {
        table: {name: given[option] for name, option in fields.items() if option in given}
        for table, fields in _OPTIONS.items()
    }
    declared = (read_schema(columns) if columns else {}) | tables.pop("data")
    base = Recipe.read(recipe, declared) if recipe else default_recipe(declared, model, optimizer)
    settings = base.changed(tables, "the settings")
    if views is not None:
        moves = settings.augmentation if settings.augmentation.moves else AugmentationSection(flip=True)
        settings = replace(settings, augmentation=replace(moves, views=views))
    place = out or Path("runs", Path(settings.data.name).resolve().name.partition(".")[0])
    if "RANK" not in os.environ:  # before torch is imported, which takes seconds; ranks refuse input together
        RunFolder(place)
        check_names(settings)
    if simulate is not None:
        settings = _scaled(settings, simulate, data_dir)
    report(lambda: _begin(settings, place, data_dir), as_json)


def _refuse_other_options(context: typer.Context) -> None:
    sources = {p.opts[0]: context.get_parameter_source(p.name) for p in context.command.params if p.name}
    given = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in given if option not in ("--resume", "--json")]:
        raise ValueError(f"--resume continues a run with the settings it began with; leave out {', '.join(others)}")


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
    keep_freed_memory()
    with on_ranks() as ranks:
        with ranks.unanimous("the run folder"):
            folder = RunFolder(out)
        settings = None
        if ranks.rank == 0:
            mention_others(out, "This command begins another run, whose ledger does not count it.")
            settings = {
                "recipe": asdict(_with_absolute_paths(recipe)),
                "data_dir": data_dir and str(data_dir.resolve()),
                "holdout_key": secrets.token_hex(_KEY_BYTES),
            }
        facts = _train(ranks, recipe, data_dir, folder, settings)
        return facts and (facts, out)


def mention_others(out: Path, ending: str) -> None:
    """Say on standard error which runs have begun or ended at this place; no ledger counts the runs of another one."""
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
    keep_freed_memory()
    with on_ranks() as ranks:
        with ranks.unanimous("the run folder"):
            folder = RunFolder.unfinished(place)
            settings = folder.settings
            if missing := {"recipe", "data_dir", "holdout_key"} - settings.keys():
                raise ValueError(f"the settings in {folder.checkpoint} lack {', '.join(sorted(missing))}; restore them")
            recipe = Recipe.of(settings["recipe"], str(folder.checkpoint))
            data_dir = Path(settings["data_dir"]) if settings["data_dir"] else None
        facts = _train(ranks, recipe, data_dir, folder)
        return facts and (facts, folder.out)


def _train(
    ranks: AnyRanks, recipe: Recipe, data_dir: Path | None, folder: RunFolder, settings: dict[str, Any] | None = None
) -> Facts | None:
    """Train a new run, whose settings are kept in its folder; without settings, continue the run in the folder.

    Every rank loads the data and computes; rank 0 alone has the settings, shows the progress, and writes.
    """
    from noisette.cli.watch import Watch
    from noisette.training.loop import resume, train
    from noisette.training.records import load_data, load_public
    from noisette.training.report.facts import facts_of
    from noisette.training.report.page import documents

    first = ranks.rank == 0
    key = ranks.from_first(
        "the key of the records held out", lambda: (folder.settings if settings is None else settings)["holdout_key"]
    )
    with ranks.unanimous("the data"):
        data = load_data(recipe, data_dir, holdout_key=bytes.fromhex(key))
        public = load_public(recipe, data_dir)
    with folder if first else nullcontext(), Watch(f"{data.name}, {recipe.model.name}", shown=first) as watch:
        place, resumed = ranks.from_first("the checkpoint folder", lambda: [str(folder.checkpoint), settings is None])
        saved, on_step = Path(place), watch.on_step
        if resumed:
            outcome = resume(recipe, data, public=public, on_step=on_step, checkpoint=saved, ranks=ranks)
        else:
            if settings is not None:
                folder.keep_settings(settings)
            ledger = folder.ledger if first else None
            outcome = train(
                recipe, data, public=public, ledger_path=ledger, on_step=on_step, checkpoint=saved, ranks=ranks
            )
        if not first:
            return None
        facts = facts_of(outcome)
        folder.complete(documents(facts, outcome.model))
    mention_replaced(folder)
    return facts


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


def _scaled(recipe: Recipe, factor: int, data_dir: Path | None) -> Recipe:
    """The recipe of a small run that stands for the one by this recipe; the data are read for their declared size."""
    from noisette.training.loop import scaled_down
    from noisette.training.records import load_data

    size = load_data(recipe, data_dir, holdout_key=secrets.token_bytes(_KEY_BYTES)).declared_size
    return scaled_down(recipe, factor, size)


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that a run can be continued from any folder."""
    from noisette.data import names
    from noisette.nn.models.factory import is_folder_of_model

    def whole(name: str | None, is_path: bool = True) -> str | None:
        return str(Path(name).resolve()) if name and is_path else name

    data, model, public = recipe.data, recipe.model, recipe.public
    return replace(
        recipe,
        data=replace(data, name=whole(data.name, data.name not in names()), test=whole(data.test)),
        model=replace(model, name=whole(model.name, is_folder_of_model(model.name)), weights=whole(model.weights)),
        public=replace(public, data=whole(public.data, public.data not in names())),
    )


def _summarize(facts: Facts, out: Path) -> None:
    from noisette.training.report.facts import duration, power_of_ten, upward
    from noisette.training.report.statement import rows_of_search, rows_of_tests

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
