"""``noisette curve``: the same run at several privacy budgets, beside a baseline, and what all of them cost."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from noisette.accounting import atomic_files
from noisette.cli import options
from noisette.cli.options import flag, option, plain_errors
from noisette.cli.train import report, settled, train
from noisette.training.recipe import check_plain

_BUDGETS = "0.5,1,3,8"


@plain_errors()
def curve(
    context: typer.Context,
    *,
    epsilon: Annotated[str, option("E,E,..", "The privacy budgets: one run for each.")] = _BUDGETS,
    no_baseline: Annotated[bool, flag("--no-baseline", "Leave out the run without privacy, and NOT PRIVATE.")] = False,
    out: Annotated[Path | None, option("DIR", "A new folder, for all runs and the curve.", "runs/NAME-curve")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of curve.json, and nothing else.")] = False,
) -> None:
    """What does privacy cost? Train the same run at each budget, and draw its test figures against epsilon.

    `noisette curve --data digits --epsilon 0.5,1,3,8`

    Takes a recipe and all other options of `noisette train`. Writes curve.html, curve.svg and curve.json beside the
    folders of the runs, each with its own ledger. All runs are releases about one data set: the page says what they
    cost together.
    """
    budgets = sorted(set(options.numbers("epsilon", epsilon, _BUDGETS, above=0)))
    if "RANK" in os.environ:
        raise ValueError("noisette curve trains one run after the other in one process; start it without torchrun")
    trains = typer.Typer(add_completion=False)
    trains.command()(train)
    given = typer.main.get_command(trains).make_context(str(context.info_name), list(context.args))
    of_train = cast(typer.Context, given)
    if any(of_train.params[name] for name in ("resume", "without_privacy", "sign")):
        others = "--resume, --without-privacy and --sign"
        raise ValueError(f"a curve begins its runs, one of them without privacy, and signs none; leave out {others}")
    run = settled(of_train)
    place = out or run.out.with_name(f"{run.out.name}-curve")
    if place.exists():
        raise ValueError(f"{place} exists; choose another --out, or move it away: its runs may be about the same data")
    recipes = [run.recipe.changed({"privacy": {"epsilon": each}}, "--epsilon") for each in budgets]
    loaded = replace(run, recipe=recipes[-1], out=place).checked().loaded  # a warning is of the largest budget
    assert loaded is not None
    runs = [replace(run, recipe=of, out=place / f"epsilon-{of.privacy.epsilon:g}", loaded=loaded) for of in recipes]
    plain = replace(run.without_privacy(), out=place / "without-privacy", loaded=loaded)
    baseline = [] if no_baseline else [plain]
    if baseline:
        check_plain(plain.recipe)
    if loaded[0].test is None:
        raise ValueError("there are no test examples, so there is no curve; give --test FILE or --holdout F")

    def work() -> None:
        from noisette.training.report.page import documents_of_curve

        done = [each.begin() for each in (*baseline, *runs)]  # the baseline first: where it fails, nothing is spent
        facts = [each[0] for each in done if each is not None]
        files = documents_of_curve(facts[len(baseline) :], facts[0] if baseline else None)
        for name, content in files.items():
            atomic_files.write(place / name, content)
        told = json.loads(files["curve.json"])
        rows = [f"{name}: {figures}" for name, figures in told["table"].items()]
        shown = "\n".join([*rows, *told["words"], f"curve: {place / 'curve.html'}"])
        typer.echo(files["curve.json"].decode().rstrip() if as_json else shown)

    report(work, as_json)
