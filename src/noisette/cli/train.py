"""``noisette train``: its options, and the recipe that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette import data as data_sets
from noisette.accounting.registry import described
from noisette.cli.options import DataDir, listed, numbers, option, plain_errors, whole_numbers
from noisette.cli.training import begin, go_on, scaled
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.nn.models import names as model_names
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

_privacy = partial(option, panel="Privacy")
_training = partial(option, panel="Training")
_norm = partial(option, panel="Batch norm")
_declared = partial(option, panel="Data of your own, declared")


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
        str | None,
        option(
            "NAME",
            f"{', '.join(data_sets.names())}; or a folder of images, a .csv, .jsonl, .parquet, .xlsx or .npz "
            "of your own.",
            "digits",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "NAME",
            f"{', '.join(model_names())}; or package.module:callable, called with (example shape, classes).",
            "what suits the data",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option("DIR", "The run folder. An older run there is kept as DIR.replaced-1.", "runs/NAME of the data"),
    ] = None,
    resume: Annotated[
        Path | None,
        option("DIR", "Continue an unfinished run, within its budget; takes no other option.", "a new run"),
    ] = None,
    data_dir: DataDir = None,
    epsilon: Annotated[float | None, _privacy("F", "Privacy budget of the whole run, above 0.", "3")] = None,
    delta: Annotated[
        float | None,
        _privacy(
            "F", "Probability with which epsilon may fail, below 1 / declared size.", "digits: 1e-4, others: 1e-5"
        ),
    ] = None,
    max_grad_norm: Annotated[
        float | None,
        _privacy("F", "Clipping norm: the most that the gradient of one example keeps.", "what suits the model"),
    ] = None,
    clipping: Annotated[str | None, _privacy("NAME", f"{described(CLIPPING_RULES)}.", "flat")] = None,
    engine: Annotated[
        str | None,
        _privacy(
            "NAME",
            f"How the clipped sum is computed; every engine gives the same sum. {described(ENGINES)}.",
            "book-keeping",
        ),
    ] = None,
    allow_large_delta: Annotated[
        bool,
        typer.Option(
            "--allow-large-delta",
            help="Accept a delta of 1 / declared size or more. The report mentions it.",
            rich_help_panel="Privacy",
        ),
    ] = False,
    epochs: Annotated[float | None, _training("F", "Passes over the declared size.", "what suits the data")] = None,
    batch_size: Annotated[
        int | None, _training("N", "Expected batch size, in examples.", "what suits the data")
    ] = None,
    batches: Annotated[
        str | None, _training("NAME", f"How batches are drawn. {described(BATCHES)}.", "poisson")
    ] = None,
    largest_batch: Annotated[int | None, _training("N", "Truncated batches: the most examples of a batch.")] = None,
    bands: Annotated[
        int | None, _training("N", "Cyclic batches: the steps over which noise is correlated; more take more memory.")
    ] = None,
    compile: Annotated[
        str | None,
        _training(
            "NAME",
            "Whether the step is captured as a graph and compiled: auto, where the run is long enough to repay it; "
            "yes, which waits for it; or no.",
            "auto",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, _training("NAME", f"How gradients are used. {described(OPTIMIZERS)}.", "what suits the data")
    ] = None,
    lr: Annotated[float | None, _training("F", "Learning rate.", "what suits the data")] = None,
    views: Annotated[
        int | None,
        _training(
            "N", "Views of an image, mirrored unless the recipe says otherwise, whose mean gradient is clipped.", "1"
        ),
    ] = None,
    simulate: Annotated[
        int | None,
        _training(
            "K",
            "Train with batch, epochs and noise divided by K, to choose settings. This run has another, larger "
            "epsilon, which is charged and reported.",
        ),
    ] = None,
    seed: Annotated[
        int | None, _training("N", "Seed of the first weights. Noise and sampling never depend on it.", "0")
    ] = None,
    batch_norm: Annotated[
        str | None,
        _norm(
            "NAME",
            f"What replaces each batch norm of the model. {described(BATCH_NORMS)}.",
            "batch norm stays, and is refused",
        ),
    ] = None,
    public: Annotated[
        str | None,
        _norm("NAME", "Data set of the public examples that give the statistics. It has no privacy guarantee."),
    ] = None,
    public_examples: Annotated[int | None, _norm("N", "Number of public examples.", "128")] = None,
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
    classes: Annotated[str | None, _declared("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[
        str | None, _declared("LOW,HIGH", "Instead of classes: bounds of a number to predict; others are clipped.")
    ] = None,
    unit: Annotated[str | None, _declared("TEXT", "The unit of that number, for the report.")] = None,
    size: Annotated[int | None, _declared("N", "Public number of training records; need not be exact.")] = None,
    label: Annotated[str | None, _declared("COLUMN", "CSV: the column of the class or number.", "label")] = None,
    text: Annotated[str | None, _declared("COLUMN", "CSV: the column of a text, which is the only input.")] = None,
    decimal: Annotated[
        str | None, _declared("SIGN", "CSV: what stands before decimals, a point or a comma.", ".")
    ] = None,
    skip_unlabelled: Annotated[
        bool,
        typer.Option(
            "--skip-unlabelled",
            help="CSV: leave out rows without a label, instead of refusing them.",
            rich_help_panel="Data of your own, declared",
        ),
    ] = False,
    image_size: Annotated[
        str | None,
        _declared("WxH", "Images: scale and cut each to this size, in colour.", "all must have one size"),
    ] = None,
    grey: Annotated[
        bool,
        typer.Option(
            "--grey",
            help="Images: with --image-size, bring each to grey instead.",
            rich_help_panel="Data of your own, declared",
        ),
    ] = False,
    tokens: Annotated[int | None, _declared("N", "Texts: how many words of each are used.", "64")] = None,
    test: Annotated[str | None, _declared("FILE", "CSV: a second file, to test with.")] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            "--holdout",
            "--hold-out",
            metavar="F",
            help="The share of records drawn at random to test with. Test figures on them are not private.",
            show_default=False,
            rich_help_panel="Data of your own, declared",
        ),
    ] = None,
    users: Annotated[
        str | None,
        _declared("COLUMN", "CSV: the column of the user of a record. The guarantee is then for users.", "for records"),
    ] = None,
    records_per_user: Annotated[int | None, _declared("K", "The most records of one user that are used.")] = None,
    public_users: Annotated[int | None, _declared("N", "Number of users, if it is public: it may save noise.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, that of run.json with the folder, and nothing else.")
    ] = False,
) -> None:
    """Train a classifier with differential privacy, and report its accuracy and its privacy cost.

    `noisette train --data mnist --epsilon 3`

    `noisette train --data photos --classes cat,dog --size 20000 --model resnet-18 --batch-norm group`

    Without any option: digits, a small convolutional network, epsilon 3, delta 1e-4, in a few seconds. Ctrl-C ends the
    run after the current step and keeps the model so far. SIGTERM saves a checkpoint and exits; --resume continues it.
    """
    if resume:
        _refuse_other_options(context)
        go_on(resume, as_json)
        return
    declared = (read_schema(columns) if columns else {}) | _given(
        {
            "name": data,
            "classes": _classes(classes),
            "size": size,
            "label": label,
            "target": None if target is None else numbers("target", target, "0,120", count=2),
            "unit": unit,
            "text": text,
            "tokens": tokens,
            "decimal": decimal,
            "skip_unlabelled": skip_unlabelled or None,
            "image_size": None
            if image_size is None
            else whole_numbers("image-size", image_size.replace("x", ","), "64x48"),
            "grey": grey or None,
            "test": test,
            "holdout": holdout,
            "users": users,
            "records_per_user": records_per_user,
            "public_users": public_users,
        }
    )
    base = Recipe.read(recipe, declared) if recipe else default_recipe(declared, model, optimizer)
    changes = {
        "model": {"name": model, "batch_norm": batch_norm},
        "public": {"data": public, "examples": public_examples},
        "privacy": {
            "epsilon": epsilon,
            "delta": delta,
            "max_grad_norm": max_grad_norm,
            "clipping": clipping,
            "engine": engine,
            "allow_large_delta": allow_large_delta or None,
        },
        "training": {
            "epochs": epochs,
            "batch_size": batch_size,
            "batches": batches,
            "largest_batch": largest_batch,
            "bands": bands,
            "compile": compile,
            "optimizer": optimizer,
            "lr": lr,
            "seed": seed,
        },
    }
    settings = base.changed({table: _given(values) for table, values in changes.items()}, "the settings")
    if views is not None:
        moves = settings.augmentation if settings.augmentation.moves else AugmentationSection(flip=True)
        settings = replace(settings, augmentation=replace(moves, views=views))
    place = out or Path("runs", Path(settings.data.name).resolve().name.partition(".")[0])
    begin(settings if simulate is None else scaled(settings, simulate, data_dir), place, data_dir, as_json)


def _refuse_other_options(context: typer.Context) -> None:
    sources = {p.opts[0]: context.get_parameter_source(p.name) for p in context.command.params if p.name}
    given = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in given if option not in ("--resume", "--json")]:
        raise ValueError(f"--resume continues a run with the settings it began with; leave out {', '.join(others)}")


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    """The values that the command line gave."""
    return {key: value for key, value in values.items() if value is not None}


def _classes(given: str | None) -> int | tuple[str, ...] | None:
    if given is None:
        return None
    return int(given) if given.isdecimal() else listed("classes", given)
