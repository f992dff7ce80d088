"""``noisette train``: its options, the recipe that they make, the run, and its summary; ``curve``, which repeats it."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, cast, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noisette import data as data_sets
from noisette import errors as checks
from noisette.accounting import atomic_files
from noisette.accounting.budget import check_delta
from noisette.accounting.calibrate import schedule
from noisette.accounting.registry import described
from noisette.cli import options
from noisette.cli.options import INTERRUPTED, TERMINATED, DataDir, FactsAsJson, flag, option, plain_errors
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.nn import models
from noisette.nn.models.backbones import PACKAGES
from noisette.training import keep_freed_memory
from noisette.training import recipe as recipes
from noisette.training.recipe import BATCH_NORMS, BATCHES, OPTIMIZERS, Recipe, Settings, load_data, load_public
from noisette.training.run_folder import RunFolder, in_words, key_in, unfinished_runs
from noisette.training.run_folder import sign as sign_run

if TYPE_CHECKING:
    from noisette.data import DataSet
    from noisette.ranks import AnyRanks
    from noisette.run.private import PrivateRun
    from noisette.training.report.facts import Facts, Point

_Number: TypeAlias = float | None
_Whole: TypeAlias = int | None
_Text: TypeAlias = str | None
_Loaded: TypeAlias = "tuple[DataSet, DataSet | None]"  # the records and the data set of the public examples
_SUITED = "what suits the data"
_BUDGETS = "0.5,1,3,8"
_COMPILER = logging.getLogger("noisette.capture")
_LARGE_EPSILON, _FEW_RECORDS = 20, 100
_OF_OWN = "Data of your own, declared"
_privacy = partial(option, panel="Privacy")
_training = partial(option, panel="Training")
_norm = partial(option, panel="Batch norm")
_declared = partial(option, panel=_OF_OWN)
# Fields of a recipe's tables that have no option, or one of another name.
_OPTIONS = {("data", "name"): "data", ("model", "name"): "model", ("public", "data"): "public"}
_OPTIONS |= {("public", "examples"): "public_examples", ("public", "seed"): "", ("public", "classes"): ""}
_SETTINGS = (
    "Settings in a file; the options below override it. The accountant is set there alone: privacy.accountant is one "
    f"of {', '.join(recipes.accountant_names())}."
)
_RECIPE = typer.Argument(metavar="RECIPE.toml", help=_SETTINGS)
_COLUMNS = "What is declared about each column of a CSV, and the facts below; noisette schema writes one."
_FILES = f"{', '.join(data_sets.names())}; or a folder of images, a .csv, .jsonl, .parquet, .xlsx or .npz of your own."
_MODELS = f"{', '.join(models.names())}; or package.module:callable, called with (example shape, classes)."
_BACKBONES = f"A public network whose features the model takes: {', '.join(PACKAGES)}; or a folder of Hugging Face."
_ENGINES = f"How the clipped sum is computed; every engine gives the same sum. {described(ENGINES)}."
_COMPILED = "Whether the step is compiled: auto, where the run is long enough; yes, which waits for it; or no."
_TESTED = "The share of records drawn at random to test with. Test figures on them are not private."
_NORMS = f"What replaces each batch norm of the model. {described(BATCH_NORMS)}."
_PUBLIC = "Data set of the public examples that give the statistics. It has no privacy guarantee."
_RESUME = "Continue an unfinished run, within its budget; beside it only --sign and --json."
_NORM = "Clipping norm: the most that the gradient of one example keeps."
_DELTA = "Probability with which epsilon may fail, below 1 / declared size."
_LARGE = "Accept a delta of 1 / declared size or more; reported."
_BASELINE = "A baseline, NOT PRIVATE: nothing is clipped, no noise."
_WEIGHTS = "How much the loss of each class counts, from public knowledge."
_TARGET = "Instead of classes: bounds of a number to predict; others are clipped."
_UNLABELLED = "CSV: leave out rows without a label, do not refuse them."
_IMAGES = "Images: scale and cut each to this size, in colour."
_USERS = "CSV: the column of the user of a record. The guarantee is then for users."


@plain_errors()
def train(
    context: typer.Context,
    recipe: Annotated[Path | None, _RECIPE] = None,
    data: Annotated[_Text, option("NAME", _FILES, "digits")] = None,
    model: Annotated[_Text, option("NAME", _MODELS, _SUITED)] = None,
    backbone: Annotated[_Text, option("NAME", _BACKBONES)] = None,
    out: Annotated[Path | None, option("DIR", options.OUT, "runs/NAME of the data")] = None,
    resume: Annotated[Path | None, option("DIR", _RESUME, "a new run")] = None,
    sign: Annotated[Path | None, option("KEY.pem", "Sign the run's digests with this Ed25519 key.", "no one")] = None,
    data_dir: DataDir = None,
    epsilon: Annotated[_Number, _privacy("F", "Privacy budget of the whole run, above 0.", "3")] = None,
    delta: Annotated[_Number, _privacy("F", _DELTA, _SUITED)] = None,
    max_grad_norm: Annotated[_Number, _privacy("F", _NORM, _SUITED)] = None,
    clipping: Annotated[_Text, _privacy("NAME", f"{described(CLIPPING_RULES)}.", "flat")] = None,
    engine: Annotated[_Text, _privacy("NAME", _ENGINES, "book-keeping")] = None,
    allow_large_delta: Annotated[bool, flag("--allow-large-delta", _LARGE, panel="Privacy")] = False,
    without_privacy: Annotated[bool, flag("--without-privacy", _BASELINE, panel="Privacy")] = False,
    epochs: Annotated[_Number, _training("F", "Passes over the declared size.", _SUITED)] = None,
    batch_size: Annotated[_Whole, _training("N", "Expected batch size, in examples.", _SUITED)] = None,
    batches: Annotated[_Text, _training("NAME", f"How batches are drawn. {described(BATCHES)}.", "poisson")] = None,
    largest_batch: Annotated[_Whole, _training("N", "Truncated batches: the most examples of a batch.")] = None,
    bands: Annotated[_Whole, _training("N", "Cyclic batches: the steps over which noise is correlated.")] = None,
    compile: Annotated[_Text, _training("NAME", _COMPILED, "auto")] = None,
    optimizer: Annotated[_Text, _training("NAME", f"How gradients are used. {described(OPTIMIZERS)}.", _SUITED)] = None,
    lr: Annotated[_Number, _training("F", "Learning rate.", _SUITED)] = None,
    class_weights: Annotated[_Text, _training("A=N,B=N,..", _WEIGHTS, "all alike")] = None,
    seed: Annotated[_Whole, _training("N", "Seed of the first weights, never of noise or sampling.", "0")] = None,
    batch_norm: Annotated[_Text, _norm("NAME", _NORMS, "batch norm stays, and is refused")] = None,
    public: Annotated[_Text, _norm("NAME", _PUBLIC)] = None,
    public_examples: Annotated[_Whole, _norm("N", "Number of public examples.", "128")] = None,
    columns: Annotated[Path | None, _declared("SCHEMA.toml", _COLUMNS)] = None,
    classes: Annotated[_Text, _declared("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[_Text, _declared("LOW,HIGH", _TARGET)] = None,
    unit: Annotated[_Text, _declared("TEXT", "The unit of that number, for the report.")] = None,
    size: Annotated[_Whole, _declared("N", "Public number of training records; need not be exact.")] = None,
    label: Annotated[_Text, _declared("COLUMN", "CSV: the column of the class or number.", "label")] = None,
    text: Annotated[_Text, _declared("COLUMN", "CSV: the column of a text, which is the only input.")] = None,
    decimal: Annotated[_Text, _declared("SIGN", "CSV: what stands before decimals, a point or a comma.", ".")] = None,
    skip_unlabelled: Annotated[bool, flag("--skip-unlabelled", _UNLABELLED, panel=_OF_OWN)] = False,
    image_size: Annotated[_Text, _declared("WxH", _IMAGES, "all must have one size")] = None,
    grey: Annotated[bool, flag("--grey", "Images: with --image-size, bring each to grey.", panel=_OF_OWN)] = False,
    tokens: Annotated[_Whole, _declared("N", "Texts: how many words of each are used.", "64")] = None,
    test: Annotated[_Text, _declared("FILE", "CSV: a second file, to test with.")] = None,
    holdout: Annotated[_Number, _declared("F", _TESTED, None, "--holdout", "--hold-out")] = None,
    users: Annotated[_Text, _declared("COLUMN", _USERS, "for records")] = None,
    records_per_user: Annotated[_Whole, _declared("N", "The most records of one user that are used.")] = None,
    public_users: Annotated[_Whole, _declared("N", "Number of users, if it is public: it may save noise.")] = None,
    as_json: FactsAsJson = False,
) -> None:
    """Train a classifier with differential privacy, and report its accuracy and its privacy cost.

    `noisette train --data mnist --epsilon 3`

    `noisette train --data photos --classes cat,dog --size 20000 --model resnet-18 --batch-norm group`

    Without any option: digits, a small convolutional network, epsilon 3, delta 1e-4, in a few seconds. Ctrl-C or
    SIGTERM saves the run after the current step, and --resume continues it; a second Ctrl-C ends at once.
    """
    mistakes, signed_here = checks.Mistakes(), sign if os.environ.get("RANK", "0") == "0" else None
    signing = signed_here and mistakes.check(lambda: key_in(signed_here))
    if resume:
        if others := ", ".join(own for own in _asked(context) if own not in ("--resume", "--json", "--sign")):
            mistakes.add(f"--resume continues a run with the settings it began with; leave out {others}")
        begun = mistakes.check(lambda: RunFolder.unfinished(resume).settings)  # before the import of torch, of seconds
        if begun and begun.get("sign") and sign is None:
            mistakes.add(f"the run was begun with --sign {begun['sign']} and would end unsigned; give --sign again")
        mistakes.refuse()
        report(lambda: _go_on(resume), as_json, signing)
        return
    run = settled(context, mistakes, out, "-not-private" if without_privacy else "", plain=without_privacy)
    if run.private and run.loaded:
        mention_weak(run.recipe.privacy.epsilon, run.loaded[0].declared_size)
    report(run.begin, as_json, signing)


def _asked(context: typer.Context) -> list[str]:
    """The options that are given on the command line."""
    sources = {p.opts[0]: context.get_parameter_source(p.name) for p in context.command.params if p.name}
    return [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]


@dataclass(frozen=True)
class Run:
    """A run that is asked for, or that is to go on: everything that it begins with."""

    recipe: Recipe
    out: Path
    data_dir: Path | None
    key: str  # decides which records are held out
    has_rate: bool = False  # whether a learning rate or an optimizer is asked for
    private: bool = True
    loaded: _Loaded | None = None
    sign: Path | None = None  # the file of the key that signs it at its end

    def without_privacy(self) -> Run:
        """The same as a baseline, with a learning rate for it: one for clipped gradients does not fit others."""
        training = self.recipe.training
        training = training if self.has_rate else replace(training, optimizer="sgd", lr=None)
        return replace(self, recipe=replace(self.recipe, training=training), private=False)

    def begin(self) -> tuple[Facts, Path] | None:
        """Train it: its facts, on rank 0, and where its folder is."""
        with on_ranks() as ranks:
            with ranks.unanimous("the run folder"):
                folder = RunFolder(self.out)
            return self.train(ranks, folder, resumed=False)

    def train(self, ranks: AnyRanks, folder: RunFolder, *, resumed: bool) -> tuple[Facts, Path] | None:
        """Train it in this folder, which keeps its settings, or continue what is there; rank 0 alone writes."""
        from noisette.training.loop import resume, train, train_without_privacy
        from noisette.training.report.facts import facts_of
        from noisette.training.report.page import documents

        first, begun, recipe = ranks.rank == 0, unfinished_runs(folder.out), self.recipe
        key = ranks.from_first("the key of the records held out", lambda: self.key)
        with ranks.unanimous("the data"):
            data, public = self.loaded or _loaded(recipe, self.data_dir, key)
        title = f"{'' if self.private else 'NOT PRIVATE: '}{data.name}, {recipe.model.name}"
        with folder if first else nullcontext(), Watch(title, shown=first) as watch:
            saved = Path(ranks.from_first("the checkpoint folder", lambda: str(folder.checkpoint)))
            if not self.private:
                outcome = train_without_privacy(recipe, data, public=public, on_step=watch.on_step)
            elif resumed:
                outcome = resume(recipe, data, public=public, on_step=watch.on_step, checkpoint=saved, ranks=ranks)
            else:
                if first:  # its paths are found in the folder
                    settings = {"recipe": asdict(recipe), "folder": str(Path.cwd()), "holdout_key": key}
                    places = {"data_dir": self.data_dir, "sign": self.sign}
                    folder.keep_settings(settings | {name: at and str(at.resolve()) for name, at in places.items()})

                def on_step(run: Any, point: Any) -> None:
                    if first and run.steps_spent == 1:  # what is refused has been by now
                        mention(begun, "This command begins another run, whose ledger does not count it.")
                    watch.on_step(run, point)

                kept = {"ledger_path": folder.ledger if first else None, "checkpoint": saved}
                outcome = train(recipe, data, public=public, on_step=on_step, ranks=ranks, **kept)
            if not first:
                return None
            facts = facts_of(outcome)
            folder.complete(documents(facts, outcome.model))
        mention_replaced(folder)
        return facts, self.out


def _loaded(settings: Settings, data_dir: Path | None, key: str) -> _Loaded:
    return load_data(settings, data_dir, holdout_key=bytes.fromhex(key)), load_public(settings, data_dir)


def settled(context: typer.Context, mistakes: checks.Mistakes, out: Path | None, ending: str, *, plain: bool) -> Run:
    """The run that the options of ``noisette train`` ask for, with its data, after all checks that need no torch.

    All mistakes are raised, also those given; those in the records only where there are no others. Without ``out`` its
    folder is named after the data, with this ending. ``plain``: it is trained without privacy, too. Ranks load and
    check their data together, later.
    """
    given = {name: value for name, value in context.params.items() if value is not None and value is not False}
    settings, unknown = _settings_of(given, mistakes)
    data, key = settings.data, secrets.token_hex(32)
    # A contradiction of a setting that is unknown may be none.
    mistakes.add(*(problem for names, problem in settings.contradictions() if unknown.isdisjoint(names)))
    if plain:
        mistakes.check(partial(recipes.check_plain, settings))
    place = out or Path("runs", Path(data.name).resolve().name.partition(".")[0] + ending)
    mistakes.check(partial(RunFolder, place))
    loaded, private = None, not given.get("without_privacy")
    if "RANK" not in os.environ:
        mistakes.check(partial(recipes.check_data, settings, unknown))
        mistakes.check(partial(models.check, settings.model.name))
        named = len(data.classes) if isinstance(data.classes, tuple) else data.classes
        size = data.trained(data.size) if data.size and data.size > 0 else None
        mistakes.check(partial(_check_numbers, settings, unknown, size, named, private=private))
        mistakes.refuse()
        loaded = _loaded(settings, given.get("data_dir"), key)
        of_set, classes = loaded[0].declared_size, loaded[0].classes  # also of a built-in one
        _check_numbers(settings, unknown, of_set, classes, private=private)
    mistakes.refuse()
    has_rate = not given.keys().isdisjoint(("lr", "optimizer"))
    run = Run(Recipe(**vars(settings)), place, given.get("data_dir"), key, has_rate, True, loaded, given.get("sign"))
    return run if private else run.without_privacy()


def _check_numbers(
    settings: Settings, unknown: set[str], size: int | None, classes: int | None, *, private: bool
) -> None:
    """Check what is set against the size of the data and the number of classes, where these are known."""
    privacy, training, found = settings.privacy, settings.training, checks.Mistakes()
    if classes:
        found.check(partial(settings.class_weights, classes))
    if size and unknown.isdisjoint(("batch_size", "epochs")):
        found.check(partial(schedule, training.batch_size, None, None, size, training.epochs))
    if size and private and unknown.isdisjoint(("public_users", "delta")):
        share = 1 / (settings.data.trained_users or size)
        found.check(partial(check_delta, privacy.delta, share, privacy.allow_large_delta))
    found.refuse()


def _settings_of(given: dict[str, Any], mistakes: checks.Mistakes) -> tuple[Settings, set[str]]:
    """The settings that options and their recipe give, without what is wrong, and the names of what is unknown so."""
    schema = mistakes.check(partial(recipes.read_schema, given["columns"])) if "columns" in given else {}
    unknown = {own.name for own in fields(recipes.DataSection)} if schema is None else set[str]()
    read = {name: mistakes.check(partial(_READ[name], given[name])) for name in _READ if name in given}
    unknown |= {name for name, value in read.items() if value is None}
    right = {name: value for name, value in (given | read).items() if value is not None and name != "columns"}
    kinds = get_type_hints(Settings).items()
    named = {t: {own.name: _OPTIONS.get((t, own.name), own.name) for own in fields(of)} for t, of in kinds}
    tables = {t: {name: right[of] for name, of in names.items() if of in right} for t, names in named.items()}
    tables["data"] = (schema or {}) | tables["data"]
    if "without_privacy" in given and (idle := ", ".join(f"--{name.replace('_', '-')}" for name in tables["privacy"])):
        mistakes.add(f"without privacy there is no guarantee to set; leave out {idle}")
    asked, wrong = Settings.found_in(tables, "the settings", mistakes)
    by_rule = given.get("model"), given.get("optimizer"), given.get("backbone"), asked.privacy.epsilon
    begun = recipes.default_recipe(vars(asked.data), *by_rule)
    if file := given.get("recipe"):
        known = {name: value for name, value in tables["data"].items() if name not in wrong}
        begun, wrong_there = Settings.in_file(file, known, mistakes)
        unknown |= wrong_there
    settings, _ = Settings.found_in(begun.merged(tables), "the settings", mistakes)
    return settings, unknown | wrong


def _weights(given: str) -> dict[str, float]:
    pairs = [part.rpartition("=")[::2] for part in options.listed("class-weights", given)]
    weights = {name: options.number(weight) for name, weight in pairs}
    right = all(isinstance(weight, int | float) and 0 < weight < math.inf for weight in weights.values())
    if len(weights) < len(pairs) or "" in weights or not right:
        form = "NAME=NUMBER for each class, once and above 0, as no=1,yes=9"
        raise ValueError(f"expected --class-weights as {form}, got {given!r}")
    return weights


_READ: dict[str, Callable[[Any], Any]] = {  # options that are texts to be read
    "classes": options.number_or_names,
    "target": lambda given: options.numbers("target", given, "0,120", count=2),
    "image_size": lambda given: options.whole_numbers("image-size", given.replace("x", ","), "64x48", count=2),
    "class_weights": _weights,
}


class Watch:
    """Shows the progress of a run, and waits for the end of a step where a signal arrives. Use it in a ``with`` block.

    An exception that a signal handler raises anywhere may be lost, where Python runs code that cannot fail. Before the
    first step there is nothing to wait for, and a second signal does not wait either. SIGTERM raises ``SystemExit``.
    On either a run saves a checkpoint first, if it took a step.
    """

    def __init__(self, title: str, *, shown: bool = True) -> None:
        self._asked: BaseException | None = None
        self._stepping = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self._task = self._progress.add_task(title, total=None, status="preparing")
        self._compiler = logging.Handler(logging.INFO)  # of messages on what is compiled, for which a step may wait
        self._compiler.emit = lambda record: self._progress.update(self._task, status=record.getMessage())

    def on_step(self, run: PrivateRun, point: Point) -> None:
        """Show the state after a step, and end the run as :meth:`show` does."""
        import torch

        from noisette.training.report.facts import percent, upward

        test = "" if point.test_accuracy is None else f"  test {percent(point.test_accuracy)}"
        test = test if point.test_rmse is None else f"  RMSE {point.test_rmse:.4g}"
        threads = torch.get_num_threads()  # with which the steps are computed, for a model on a processor
        cost = f"epsilon {upward(point.epsilon)}" if point.epsilon < math.inf else "NOT PRIVATE"
        self.show(point.step, run.steps, f"{cost}{test}  {threads} thread{'s' * (threads > 1)}")

    def show(self, done: int, steps: int, status: str) -> None:
        """Show a step, and end the run by ``KeyboardInterrupt`` or ``SystemExit`` if Ctrl-C or SIGTERM asked for it."""
        self._progress.update(self._task, total=steps, completed=done, status=status)
        if self._asked:
            raise self._asked
        self._stepping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(TERMINATED)
        if self._asked or not self._stepping:
            raise error
        self._asked = error
        self._progress.update(self._task, status="stopping after this step, which may wait for its compilation")

    def __enter__(self) -> Self:
        self._progress.start()
        _COMPILER.addHandler(self._compiler)
        _COMPILER.setLevel(logging.INFO)
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        _COMPILER.removeHandler(self._compiler)
        for number, handler in self._before.items():
            signal.signal(number, handler)


def report(work: Callable[[], tuple[Facts, Path] | None], as_json: bool, signing: Any = None) -> None:
    """Do the work, sign it, and report how it ended; nothing where the work returns nothing."""
    keep_freed_memory()
    try:
        done = work()
    except (KeyboardInterrupt, SystemExit) as stop:
        typer.echo("\n".join(["Stopped.", *getattr(stop, "__notes__", ["This command has spent nothing."])]), err=True)
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED) from None
    if done is None:
        return
    facts, place = done
    if signing is not None:
        sign_run(place, signing)
    if as_json:
        typer.echo(json.dumps({"folder": str(place), **json.loads(facts.as_json())}, indent=2))
    else:
        _summarize(facts, place)


def mention(unfinished: Sequence[Path], ending: str) -> None:
    """Say on standard error which runs were begun at the place of a new one, whose ledger does not count them."""
    for begun in unfinished:
        typer.echo(f"{in_words(begun)}\n{ending}", err=True)


def mention_weak(epsilon: float | None, size: int) -> None:
    """Say on standard error what a guarantee is worth whose epsilon is large, and what a small table can give."""
    if epsilon is not None and epsilon > _LARGE_EPSILON:
        likely = f"lets a record make an outcome e^{epsilon:g} times as likely, which is hardly a guarantee"
        typer.echo(f"Warning: epsilon {epsilon:g} {likely}; 1 to 10 is usual.", err=True)
    if size < _FEW_RECORDS:
        hidden = "nothing can be learnt that the noise for one of them does not hide"
        typer.echo(f"Warning: of {size} records {hidden}; take {_FEW_RECORDS} or more, better thousands.", err=True)


def mention_replaced(folder: RunFolder) -> None:
    """Say on standard error where the older run at the place of a new one is kept, if there was one."""
    if folder.replaced:
        same = "If it is about the same records, its privacy cost adds to that of this run."
        typer.echo(f"The older run is now {folder.replaced}. {same}", err=True)


def _go_on(place: Path) -> tuple[Facts, Path] | None:
    with on_ranks() as ranks:
        with ranks.unanimous("the run folder"):
            folder = RunFolder.unfinished(place)
            settings = folder.settings
            kinds = {"recipe": dict, "folder": str, "data_dir": str | None, "holdout_key": str | None}
            if missing := [name for name, kind in kinds.items() if not isinstance(settings.get(name, 0), kind)]:
                raise ValueError(f"the settings in {folder.checkpoint} lack {', '.join(sorted(missing))}; restore them")
            recipe = Recipe.of(settings["recipe"], str(folder.checkpoint))
            run = Run(recipe, folder.out, settings["data_dir"] and Path(settings["data_dir"]), settings["holdout_key"])
        with chdir(settings["folder"]):
            return run.train(ranks, folder, resumed=True)


@contextmanager
def on_ranks() -> Iterator[AnyRanks]:
    """The ranks that torchrun has started, or this process alone."""
    from noisette.ranks import launched

    # An error that all ranks raise is reported by rank 0, which fails for all of them: when the first process fails,
    # torchrun ends the others, and might end rank 0 before it has said why.
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


def _summarize(facts: Facts, out: Path) -> None:
    from noisette.training.report.facts import duration, power_of_ten, upward
    from noisette.training.report.statement import rows_of_search

    privacy, test = facts.recipe.privacy, facts.test
    cost = f"epsilon {upward(facts.epsilon)}, delta {power_of_ten(privacy.delta)} ({facts.neighbouring})"
    accountant = ("accountant", f"{privacy.accountant.upper()}, {facts.accountant_version}")
    lines = [
        *(test.rows(facts.class_names) if test else [("test accuracy", "not measured")]),
        *([("privacy", cost), accountant] if facts.private else [("privacy", "NOT PRIVATE, a baseline")]),
        ("steps", facts.progress),
        *(rows_of_search(facts.search) if facts.search else []),
        *([] if facts.seconds is None else [("time", duration(facts.seconds))]),
        ("report", str(out / "report.html")),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:<{width}}  {value}")
    if test and test.problem:
        typer.secho(test.problem, fg="red", err=True)


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
    mistakes = checks.Mistakes()
    read = mistakes.check(partial(options.numbers, "epsilon", epsilon, _BUDGETS, *options.ABOVE_0))
    budgets = sorted(set(read or ()))
    if read and len(budgets) < len(read):
        mistakes.add(f"expected --epsilon as different budgets, one for each run, got {epsilon!r}")
    if "RANK" in os.environ:
        mistakes.add("noisette curve trains one run after the other in one process; start it without torchrun")
    trains = typer.Typer(add_completion=False)
    trains.command()(train)
    given = typer.main.get_command(trains).make_context(context.command_path, list(context.args))
    of_train = cast(typer.Context, given)
    if any(of_train.params[name] for name in ("resume", "without_privacy", "sign")):
        others = "--resume, --without-privacy and --sign"
        mistakes.add(f"a curve begins its runs, one of them without privacy, and signs none; leave out {others}")
    run = settled(of_train, mistakes, out, "-curve", plain=not no_baseline)
    options.check_new(run.out)  # not even a run is replaced
    place, loaded = run.out, run.loaded
    assert loaded is not None
    mention_weak(budgets[-1], loaded[0].declared_size)
    budgeted = [run.recipe.changed({"privacy": {"epsilon": each}}, "--epsilon") for each in budgets]
    runs = [replace(run, recipe=of, out=place / f"epsilon-{of.privacy.epsilon:g}") for of in budgeted]
    baseline = [] if no_baseline else [replace(run.without_privacy(), out=place / "without-privacy")]
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
