"""``noisette search``: its options, the search of a recipe's settings, and the run folder that it leaves."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from noisette import errors as checks
from noisette.accounting import Ledger
from noisette.accounting.calibrate import check_ranges
from noisette.cli.options import OUT, DataDir, FactsAsJson, option, plain_errors
from noisette.cli.train import Watch, mention, mention_replaced, mention_weak, report
from noisette.nn import models
from noisette.training.recipe import Recipe, Settings, check_data, load_data, load_public
from noisette.training.run_folder import RunFolder, unfinished_runs

if TYPE_CHECKING:
    from noisette.training.report.facts import Facts
    from noisette.training.search import Score, Search

_RECIPES = "that of the recipe"
_SCORES = ("public-set", "held-out")
_OVER = (
    "Settings to draw for each run, from log(A,B), uniform(A,B), int(A,B) or choice(A,B,..). A name is that of a field "
    "of the recipe, such as training.lr, or lr. May be given several times."
)
_SCORED = (
    "On what runs are compared. public-set: on the test examples of the recipe, which you state are public. held-out: "
    "on records that are not trained on, with noise."
)
_RUNS = "Number of runs on average, at least 1. The number itself is random and secret."
_SHAPE = "Shape of the distribution of that number: 0 logarithmic, 1 geometric, inf Poisson."
_NOISE = "held-out: standard deviation of the noise on the number of right answers."
_SHARED = option("F", "held-out: the share of the records.", f"{_RECIPES}, or 0.1", "--holdout", "--hold-out")
_SEARCHED = typer.Argument(metavar="RECIPE.toml", help="Settings of all runs, as for noisette train.")


@plain_errors()
def search(
    recipe: Annotated[Path, _SEARCHED],
    *,
    over: Annotated[list[str] | None, option("'NAME=log(A,B) ..'", _OVER, "must be given")] = None,
    score_on: Annotated[str | None, option("|".join(_SCORES), _SCORED, "must be given")] = None,
    epsilon: Annotated[float | None, option("F", "Privacy budget of the whole search, above 0.", _RECIPES)] = None,
    delta: Annotated[float | None, option("F", "Probability with which epsilon may fail.", _RECIPES)] = None,
    runs: Annotated[float, option("F", _RUNS)] = 10.0,
    shape: Annotated[float | None, option("F", _SHAPE, "what needs the least noise")] = None,
    holdout: Annotated[float | None, _SHARED] = None,
    score_noise: Annotated[float | None, option("F", _NOISE, "what costs a tenth of epsilon by itself")] = None,
    out: Annotated[Path | None, option("DIR", OUT, "runs/NAME-search of the data")] = None,
    data_dir: DataDir = None,
    as_json: FactsAsJson = False,
) -> None:
    """Search for good settings of a recipe, at a price that holds for the whole search.

    `noisette search digits.toml --over "lr=log(0.1,10) max_grad_norm=uniform(0.05,1)" --score-on public-set`

    Each run has settings drawn at random. Only the best run leaves, in a run folder like that of `noisette train`. A
    search that is stopped, or cut off, is spent, and leaves its ledger alone. `noisette plan` compares batches, epochs
    and noise without any run.
    """
    from noisette.training.search_space import SearchSpace, check_recipe

    mistakes, of_held_out = checks.Mistakes(), {"--holdout": holdout, "--score-noise": score_noise}
    if not isinstance(runs, int | float) or not 1 <= runs <= 100_000:
        mistakes.add(f"expected --runs from 1 to 100,000 on average, got {runs}")
    if shape is not None and (not isinstance(shape, int | float) or not shape >= 0):
        mistakes.add(f"expected --shape of at least 0, or inf, got {shape}")
    if score_on not in _SCORES:
        mistakes.add(f"expected --score-on to be one of {', '.join(_SCORES)}, got {score_on!r}")
    if score_on == "public-set" and (idle := [name for name, value in of_held_out.items() if value is not None]):
        mistakes.add(f"{' and '.join(idle)} can go with --score-on held-out alone; leave out, or change it")
    begun, wrong = Settings.in_file(recipe, {}, mistakes)
    settings = mistakes.check(lambda: Recipe(**vars(begun))) or Recipe()
    place = out or Path("runs", Path(begun.data.name).resolve().name.partition(".")[0] + "-search")
    for check in (
        lambda: check_ranges(epsilon=epsilon, delta=delta),
        lambda: holdout is None or checks.open_fraction(holdout=holdout),
        lambda: score_noise is None or checks.positive(score_noise=score_noise),
        lambda: check_recipe(settings, public=score_on == "public-set"),
        lambda: models.check(begun.model.name),
        lambda: check_data(begun, wrong),
    ):
        mistakes.check(check)
    folder = mistakes.check(lambda: RunFolder(place))
    space = mistakes.check(lambda: SearchSpace.read(over or [], settings)) or SearchSpace({})
    mistakes.refuse()
    assert folder, "checked above"
    data, public, privacy = load_data(settings, data_dir), load_public(settings, data_dir), settings.privacy
    budget = replace(privacy, epsilon=epsilon or privacy.epsilon, delta=delta or privacy.delta)
    settings = replace(settings, privacy=budget)
    mention_weak(budget.epsilon, data.declared_size)

    def work() -> tuple[Facts, Path]:
        from noisette.training.search import HeldOutScore, PublicScore, Search

        console, share = Console(stderr=True), holdout or settings.data.holdout or 0.1
        score: Score = PublicScore()
        if score_on == "held-out":
            of_budget = HeldOutScore.for_budget(share, epsilon=budget.epsilon, delta=budget.delta)
            score = of_budget if score_noise is None else HeldOutScore(share, score_noise)
        with console.status("rehearsing the runs on random numbers") if console.is_terminal else nullcontext():
            planned = Search(settings, space, score, data, public=public, mean=runs, shape=shape)
        mention(unfinished_runs(place), "This command begins a search, whose ledger does not count it.")
        with folder:
            facts = _make(planned, folder)
        mention_replaced(folder)
        return facts, place

    report(work, as_json)


def _make(search: Search, folder: RunFolder) -> Facts:
    """Make a search whose ledger lies in this folder, and complete the folder with its best run."""
    from noisette.training.report.page import documents
    from noisette.training.search import facts_of_search

    needed = 2 * search.model_bytes + 2**24  # bytes of the report, the statement and the ledger
    if (free := shutil.disk_usage(folder.place).free) < needed:  # a search whose results do not fit is lost
        raise ValueError(
            f"{folder.place.parent} has {free / 2**20:,.0f} MiB left, and the results need {needed / 2**20:,.0f}; free "
            "some, or choose another --out. Nothing was spent"
        )
    typer.echo("\n".join(search.announcement), err=True)
    # The run that is made now, of an unknown number, is shown on a terminal and nowhere else.
    on_terminal = Console(stderr=True).is_terminal
    with Ledger(folder.ledger, dataset=search.data_name) as ledger, Watch("search", shown=on_terminal) as watch:
        found = search.run(ledger, lambda number, run: watch.show(run.steps_spent, run.steps, f"run {number}"))
        if found is None:
            nothing = "The search found nothing: no run was drawn, or all have failed"
            typer.echo(f"{nothing}. It is spent, and recorded in {folder.ledger}", err=True)
            raise typer.Exit(1)
        facts = facts_of_search(search, found, ledger)
    folder.ledger.touch()  # its older time would tell how long the search took
    folder.complete(documents(facts, found.outcome.model))
    return facts
