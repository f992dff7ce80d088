"""The facts of a run that may be published, and how their numbers are formatted. It imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import noisette
from noisette.accounting import Accountant, Event
from noisette.accounting.calibrate import with_releases
from noisette.accounting.events import UserLevel, event_of
from noisette.accounting.events import facts_of as event_facts
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.ledger import LEDGER_FILE, declared
from noisette.accounting.registry import ACCOUNTANTS
from noisette.clipping.registry import CLIPPING_RULES, ENGINES, RuleEntry

if TYPE_CHECKING:
    from noisette.core.clip import ClippingRule
    from noisette.run.private import PrivateRun
    from noisette.training.loop import Outcome
    from noisette.training.recipe import Recipe


def upward(epsilon: float) -> str:
    """An epsilon in two decimals, or below 0.01 in two digits, rounded up: it is never stated too small."""
    if not math.isfinite(epsilon):
        return "infinite"
    whole = Decimal(repr(float(epsilon)))
    last = Decimal(1).scaleb(whole.adjusted() - 1) if 0 < epsilon < 0.01 else Decimal("0.01")
    return str(whole.quantize(last, ROUND_CEILING)).lower()


def upward_percent(share: float) -> str:
    """A share as a percentage, rounded up: to one decimal, below one percent to two.

    >>> upward_percent(0.0711), upward_percent(0.00401), upward_percent(1.0)
    ('7.2 %', '0.41 %', '100 %')
    """
    digits = Decimal("0.01") if share < 0.01 else Decimal("0.1")
    value = (100 * Decimal(repr(float(share)))).quantize(digits, ROUND_CEILING)
    return "100 %" if value >= 100 else f"{value} %"


def percent(share: float) -> str:
    """A share as a percentage in one decimal, such as 93.6 %."""
    return f"{share:.1%}".replace("%", " %")


def power_of_ten(delta: float) -> str:
    """A small number in scientific notation without the zeros, such as 1e-4 and 2.5e-11."""
    mantissa, exponent = f"{delta:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def duration(seconds: float) -> str:
    """A time span in suitable units.

    >>> duration(3.21), duration(75), duration(7322)
    ('3.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def shown(value: object) -> str:
    """A setting as the command line takes it; of declared columns the names alone.

    >>> shown(0.5), shown(True), shown(None), shown("adam"), shown([0, 9.5]), shown({"yes": 9.0, "no": 1.0})
    ('0.5', 'true', 'none', 'adam', '0, 9.5', 'yes 9, no 1')
    """
    if isinstance(value, Mapping):
        return ", ".join(name if isinstance(each, Mapping) else f"{name} {shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class ClassFigures:
    """Predicted classes of the test examples, and their probabilities. The rarer of two classes is what is found."""

    accuracy: float
    base_rate: float  # the share of the most frequent class
    macro_accuracy: float  # the mean over the classes of the share that is right in each
    auc: float | None  # of more than two classes the mean over each against the others; ``None`` if all are of one
    confusion: tuple[tuple[int, ...], ...]  # for each class how many of its examples were predicted as each class
    log_loss: float | None  # in nats; ``None`` where scores are no numbers
    base_log_loss: float  # of the shares of the classes, the best constant
    mean_probabilities: tuple[float, ...]  # of each class, to be compared with its share; () without a log loss
    average_precision: float | None = None  # of the class that is found; ``None`` if there are not two
    recall_precision: tuple[tuple[float, float], ...] = ()  # of it, at lower and lower thresholds; at most 50 points

    @property
    def found(self) -> int | None:
        """The rarer of two classes, the second one if they are as frequent; ``None`` of more classes."""
        return None if len(self.confusion) != 2 else int(sum(self.confusion[1]) <= sum(self.confusion[0]))

    @property
    def is_unbalanced(self) -> bool:
        """Whether accuracy says little, because one of two classes has four fifths of the examples."""
        return self.found is not None and self.auc is not None and self.base_rate >= 0.8

    @property
    def found_share(self) -> float:
        """The share of examples that are of the class that is found."""
        return 0.0 if self.found is None else sum(self.confusion[self.found]) / sum(map(sum, self.confusion))

    @property
    def headline(self) -> str:
        """The result in a few words; accuracy says little of two classes of which one is rare."""
        if self.is_unbalanced:
            return f"AUC {self.auc:.3f} at a base rate of {percent(self.base_rate)}"
        return f"{percent(self.accuracy)} test accuracy"

    @property
    def problem(self) -> str:
        """In what the model is worse than a constant; "" where it is not."""
        loss = math.inf if self.log_loss is None else self.log_loss
        worse = ["accuracy"] * (self.accuracy < self.base_rate) + ["log loss"] * (loss > self.base_log_loss)
        way_out = "lower the threshold of its probability: see docs/how-to/unbalanced-classes.md, also on class weights"
        rare = f". To find more of the rare class, {way_out}" if self.is_unbalanced else ""
        return f"Worse than the base rate in {' and '.join(worse)}{rare}" if worse else ""

    def rows(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The name and the value of each figure, with the names of the classes."""
        loss = "not a number" if self.log_loss is None else f"{self.log_loss:.3f}"
        rows = [
            ("test accuracy", percent(self.accuracy)),
            ("base rate", f"{percent(self.base_rate)} (always the most frequent class)"),
            ("macro accuracy", f"{percent(self.macro_accuracy)} (mean over the classes)"),
            *([] if self.auc is None else [("AUC", f"{self.auc:.3f}")]),
            ("log loss", f"{loss} (base rate: {self.base_log_loss:.3f})"),
        ]
        if (k := self.found) is not None:
            right, examples, predicted = self.confusion[k][k], sum(self.confusion[k]), sum(r[k] for r in self.confusion)
            precision, recall = right / predicted if predicted else 0.0, right / examples if examples else 0.0
            both = f"{percent(precision)} and {percent(recall)}, F1 {2 * right / max(1, predicted + examples):.3f}"
            rows.append((f"precision and recall of {names[k]}", both))
            if self.average_precision is not None:
                average = f"{self.average_precision:.3f} (base rate: {self.found_share:.3f})"
                rows.append((f"average precision of {names[k]}", average))
            if self.mean_probabilities:
                means = f"{percent(self.mean_probabilities[k])} ({percent(self.found_share)} are)"
                rows.append((f"mean probability of {names[k]}", means))
        return rows


@dataclass(frozen=True)
class NumberFigures:
    """Predicted numbers of the test examples: root mean squared and mean absolute error, in the unit of the target."""

    rmse: float
    mae: float
    base_rmse: float  # of the best constant, the mean of the test examples
    base_mae: float  # of the best constant, their median
    unit: str

    @property
    def headline(self) -> str:
        return f"Test error (RMSE) of {self.rmse:.4g} {self.unit}".rstrip()

    @property
    def problem(self) -> str:
        return "Worse than the best constant in RMSE" if self.rmse > self.base_rmse else ""

    def rows(self, names: Sequence[str]) -> list[tuple[str, str]]:
        unit = f" {self.unit}" if self.unit else ""
        return [
            ("test RMSE", f"{self.rmse:.4g}{unit} (best constant: {self.base_rmse:.4g}{unit})"),
            ("test MAE", f"{self.mae:.4g}{unit} (best constant: {self.base_mae:.4g}{unit})"),
        ]


@dataclass(frozen=True)
class Point:
    """The privacy cost of a run after a step, and its accuracy on the test examples if there are any."""

    step: int  # that epsilon covers: also those that were lost when a process crashed
    epsilon: float
    test_accuracy: float | None
    test_rmse: float | None = None  # of a predicted number instead, in its unit
    test_log_loss: float | None = None


@dataclass(frozen=True)
class SearchFacts:
    """A search in public numbers: declared, or about the run that was chosen.

    Guarantee: no field depends on a run that was not chosen, nor on the number of runs that was drawn.
    """

    over: Mapping[str, str]  # the distribution of each searched setting in words
    settings: Mapping[str, float | int | bool | str | None]  # their values in the chosen run
    mean: float  # of the number of runs
    shape: str  # of its distribution
    median: int
    at_most: int  # the ninth decile
    none: float  # the chance of no run
    compared: int  # a number of runs which it would cost ``epsilon_of_all`` to release, with the same noise
    epsilon_of_all: float
    # Where records were held out: the noisy score of the chosen run, the share of the records, and the deviation of
    # the noise; all are ``None`` where the test figures decided.
    score: float | None
    held_out: float | None
    score_deviation: float | None

    @property
    def runs(self) -> str:
        never = f", none with probability {self.none:.2g}" if self.none else ""
        return (
            f"a secret random number: {self.mean:g} on average, half of the time at most {self.median}, "
            f"9 times in 10 at most {self.at_most}{never} (shape {self.shape})"
        )


@dataclass(frozen=True)
class LayerBounds:
    """How the layers of a Lipschitz network bounded one record, by parameter, under the weights of the last step."""

    sensitivities: Mapping[str, float]  # the most that one record moves the sum of a parameter's gradients
    deviations: Mapping[str, float]  # of the noise on each of its elements


@dataclass(frozen=True)
class ReleasedPart:
    """One of several sums that every step releases together."""

    name: str
    sensitivity: float
    share: float  # of the noise budget


# Keys of run.json that a run without privacy has no value for.
_OF_PRIVACY = (
    *("epsilon", "neighbouring", "accountant_version", "event", "released", "max_grad_norm", "groups", "parts"),
    *("noise_multiplier", "lipschitz", "steps", "steps_lost", "resumed", "ledger_head", "search", "declarations"),
)
_PATHS = (("data", "name"), ("data", "test"), ("model", "weights"), ("model", "backbone"), ("public", "data"))


@dataclass(frozen=True)
class Terms:
    """What the statement says of what was declared, by a recipe or in a loop of one's own."""

    delta: float
    accountant: str  # its description
    batch_size: float
    rule: RuleEntry
    engine: str  # its name and its description
    first_norm: str  # the clipping norm of the first step
    loss: str = ""  # of a Lipschitz network, in words
    logit_clip: float = 0.0
    users: str = ""  # what the records of a user have in common
    records_per_user: int | None = None
    public_users: int | None = None
    ledger: str | None = LEDGER_FILE  # ``None`` in memory


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What every private run says of itself; of one without privacy these are the values of no guarantee."""

    data: str
    declared_size: int
    parameters: int
    sampling_rate: float
    steps_planned: int
    steps_taken: int
    points: tuple[Point, ...]
    sampling: str = "Poisson"
    epsilon: float = math.inf  # the cost of ``released``, at the declared delta
    neighbouring: str = ""
    accountant_version: str = ""
    event: Mapping[str, Any] = field(default_factory=dict)  # the release of one step, as the ledger has it
    released: tuple[tuple[Mapping[str, Any], int], ...] = ()  # all that the ledger counts, each with how often
    noise_multiplier: float = 0.0
    max_grad_norm: float | None = None  # of all groups together, as of the last release; ``None`` with layer bounds
    groups: int = 1
    parts: tuple[ReleasedPart, ...] = ()  # of a step; () for the gradient alone
    lipschitz: LayerBounds | None = None
    steps: int = 0  # that the ledger has reserved
    steps_lost: int = 0  # when a process crashed; epsilon covers them
    ledger_head: str = ""
    declarations: int = 1  # in the ledger: releases that were each fixed before the first of them

    @property
    def events(self) -> dict[Event, int]:
        return {event_of(event): times for event, times in self.released}

    @property
    def unit(self) -> str:
        """Whom the guarantee protects: "user" or "record"."""
        return "user" if isinstance(event_of(self.event), UserLevel) else "record"


@dataclass(frozen=True, kw_only=True)
class OwnFacts(RunFacts):
    """A run in a loop of one's own. It says nothing that such a loop may break."""

    terms: Terms
    bounds: tuple[float, ...] = ()  # of the groups that are clipped apart
    accountant: Accountant
    search: ClassVar[None] = None
    resumed: ClassVar[int] = 0


@dataclass(frozen=True, kw_only=True)
class Facts(RunFacts):
    """A run in public numbers: a run publishes this class, the weights and the ledger only.

    Guarantee: no field depends on the training records except through the noise. Those about test examples are exact,
    also where these are records that were held out: these have no guarantee.
    """

    version: str
    recipe: Recipe
    note: str
    input_shape: tuple[int, ...]
    classes: int
    public_weights: str  # the SHA-256 of the file of the first weights, "" if they were random
    test_accuracy: float | None  # of the saved model
    seconds: float | None  # ``None`` for a search: a first run takes longer, so it would tell of the number of runs
    device: str
    resumed: int = 0  # how often the run was continued in another process
    test: ClassFigures | NumberFigures | None = None
    features: tuple[str, ...] = ()  # names of the columns that are inputs, which the header of a CSV makes public
    words: int = 0  # how many numbers of words there are in texts
    search: SearchFacts | None = None  # that chose the run: epsilon and ``released`` are then those of the search

    @property
    def private(self) -> bool:
        return bool(self.event)

    @property
    def terms(self) -> Terms:
        """What the recipe declares of the guarantee."""
        privacy, data, loss = self.recipe.privacy, self.recipe.data, self.recipe.lipschitz
        tau = f"{loss.tau:g}" if loss.tau else ""
        return Terms(
            privacy.delta,
            ACCOUNTANTS[privacy.accountant].description,
            self.recipe.training.batch_size,
            CLIPPING_RULES[privacy.clipping],
            f"{privacy.engine} ({ENGINES[privacy.engine].description})",
            f"{privacy.max_grad_norm:g}",
            f"the cross-entropy of the scores times {tau}, divided by {tau}",
            loss.logit_clip,
            f"the same value in the column {data.users!r}",
            data.records_per_user,
            data.trained_users,
        )

    @property
    def model_name(self) -> str:
        """The name of the model; of a folder without those above it, which are the user's own."""
        from noisette.nn.models.factory import is_folder_of_model

        name = self.recipe.model.name
        return Path(name).name if is_folder_of_model(name) else name

    @property
    def class_names(self) -> tuple[str, ...]:
        declared = self.recipe.data.classes
        return declared if isinstance(declared, tuple) else tuple(map(str, range(self.classes)))

    @property
    def progress(self) -> str:
        lost = f" (resumed, {self.steps_lost:,} lost)" if self.resumed else ""
        return f"{self.steps_taken:,} of {self.steps_planned:,}{lost}"

    def as_json(self) -> str:
        """The text of ``run.json``. It has file names in the place of paths: the user's folders are not published."""
        content: dict[str, Any] = {"private": self.private} | asdict(self)
        if not self.private:
            content = {key: value for key, value in content.items() if key not in _OF_PRIVACY}
            content["points"] = [{"step": point.step, "test_accuracy": point.test_accuracy} for point in self.points]
            del content["recipe"]["privacy"]
        for section, key in _PATHS:
            if path := content["recipe"][section][key]:
                content["recipe"][section][key] = Path(path).name
        content["recipe"]["model"]["name"] = self.model_name
        return json.dumps(content, indent=2) + "\n"


def facts_of(outcome: Outcome) -> Facts:
    """What may be published about this run; of one without privacy, what there is."""
    from noisette.run.private import PrivateRun

    recipe, run, data = outcome.recipe, outcome.run, outcome.data
    if isinstance(run, PrivateRun):
        told = facts_of_run(run, recipe.privacy.delta)
        common = {own.name: getattr(told, own.name) for own in fields(RunFacts)}
    else:
        parameters = sum(p.numel() for p in run.bound.parameters.values())
        common = {"parameters": parameters, "sampling_rate": run.sampling_rate}
        common |= {"steps_planned": run.steps, "steps_taken": run.steps_spent}
    return Facts(
        **common | {"data": data.name, "declared_size": data.declared_size, "points": tuple(outcome.points)},
        version=noisette.__version__,
        recipe=recipe,
        note=data.note,
        input_shape=tuple(data.train.inputs.shape[1:]),
        classes=data.classes,
        public_weights=outcome.public_weights,
        test_accuracy=getattr(outcome.test, "accuracy", None),
        seconds=outcome.seconds,
        device=next(outcome.model.parameters()).device.type,
        test=outcome.test,
        features=data.features,
        words=data.words,
        resumed=outcome.resumed,
    )


def epsilon_after(run: PrivateRun, step: int, delta: float) -> float:
    """What a run and all else in its ledger cost when so many steps of it were spent."""
    declarations = declared([*run.ledger.paid.items(), (run.terms.recorded.series(run.event), 1)])
    by = RenyiOdometer() if len(declarations) > 1 else run.accountant  # others may have led to the choice of this run
    return by.compose(with_releases(run.terms.beside(run.ledger), run.event, step)).epsilon(delta=delta)


def facts_of_run(run: PrivateRun, delta: float) -> OwnFacts:
    """What a private run says of itself at this delta; a batch that is under way is left as it is."""
    from noisette.lipschitz.bound import LipschitzBound, score_clipping
    from noisette.run.per_example import PerExampleClip

    bound, event, users, terms = run.bound, run.event, run.users, run.terms
    layers, max_grad_norm, bounds, moved = None, None, (), {}
    loss, logit_clip, rule, first, engine = "", 0.0, CLIPPING_RULES["flat"], "", ""
    if isinstance(bound, LipschitzBound):
        sensitivities = bound.sensitivities()
        shares, noise = bound.shares(sensitivities), run.noise_multiplier
        deviations = {name: noise * sensitivities[name] / math.sqrt(share) for name, share in shares.items()}
        layers, loss = LayerBounds(sensitivities, deviations), f"noisette's {type(bound.loss).__name__}"
        logit_clip = 0.0 if bound.logit_clipping is None else score_clipping(bound.logit_clipping).bound
    else:
        if not isinstance(bound, PerExampleClip):
            raise TypeError(f"only PerExampleClip and LipschitzBound have words, {type(bound).__name__} needs its own")
        groups = bound.clipping.groups(list(bound.parameters))
        bounds, counts = tuple(group.bound for group in groups), [group.count for group in groups if group.count]
        moved = {"gradient": math.hypot(*bounds)}
        moved |= {one.name: one.bound * math.sqrt(len(counts)) for one in [each.sum_of(None) for each in counts]}
        max_grad_norm, rule = moved["gradient"], rule_in_words(bound.clipping)
        first = "a declared value" if counts else f"{max_grad_norm:g}"
        kind = type(bound.engine)
        named = [f"{name} ({each.description})" for name, each in ENGINES.items() if each.resolve() is kind]
        engine = named[0] if named else kind.__name__
    return OwnFacts(
        data="the data set" if run.ledger.dataset == "unnamed" else run.ledger.dataset,
        declared_size=round(terms.expected_batch_size / run.sampling_rate),
        parameters=sum(p.numel() for p in bound.parameters.values()),
        sampling_rate=run.sampling_rate,
        steps_planned=run.steps,
        steps_taken=run.steps_taken,
        points=(),
        sampling=event.sampling,
        epsilon=run.spending.epsilon(run.ledger.paid, delta=delta),
        neighbouring=event.relation,
        accountant_version=f"noisette {noisette.__version__}",
        event=event_facts(event),
        released=tuple((event_facts(each), times) for each, times in run.ledger.events.items() if times),
        noise_multiplier=run.noise_multiplier,
        max_grad_norm=max_grad_norm,
        groups=max(1, len(bounds)),
        parts=tuple(ReleasedPart(name, moved[name], share) for name, share in event.parts),
        lipschitz=layers,
        steps=terms.spent(run.ledger),
        steps_lost=run.steps_lost,
        ledger_head=run.ledger.head,
        declarations=len(run.ledger.declarations),
        bounds=bounds,
        accountant=run.accountant,
        terms=Terms(
            delta,
            getattr(run.accountant, "description", run.accountant.name),
            terms.expected_batch_size,
            rule,
            engine,
            first,
            loss,
            logit_clip,
            "the same id in Users",
            users and users.most_records,
            users and users.public_users,
            run.ledger.path.name if run.ledger.path else None,
        ),
    )


def rule_in_words(rule: ClippingRule) -> RuleEntry:
    """What the statement says of a clipping rule, also of one that is not built in."""
    for entry in CLIPPING_RULES.values():
        if entry.resolve() is type(rule):
            of = getattr(rule, "target_quantile", 0.5)
            median = "the median" if of == 0.5 else f"the {of:g} quantile"
            return replace(entry, statement=entry.statement.replace("the median", median))
    return RuleEntry(
        f"{type(rule).__module__}:{type(rule).__qualname__}",
        "a rule of one's own",
        f"the gradient of each example is multiplied, in each of {{groups}} groups of parameters, by a factor that "
        f"{type(rule).__name__} chooses, and that leaves at most the bound of the group, as of the last release; for "
        "all {parameters} trained parameters together that gives at most {norm}",
    )
