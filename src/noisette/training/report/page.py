"""What any attack on the membership of one record can reach, as rows of a table and as panels of a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from markupsafe import Markup

from noisette.accounting import Ledger
from noisette.accounting.events import event_of
from noisette.accounting.events import facts_of as event_facts
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.interface import TradeOff
from noisette.accounting.registry import ACCOUNTANTS
from noisette.accounting.repeated_runs import NumberOfRuns
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data import names
from noisette.data.columns import Columns
from noisette.training.evaluation import ClassFigures, NumberFigures
from noisette.training.recipe import AugmentationSection, DataSection
from noisette.training.report.facts import Facts, SearchFacts, advice, facts_of, rows_of_search
from noisette.training.report.figures import (
    BLUE,
    INK,
    Line,
    Panel,
    accuracy_against_epsilon,
    accuracy_against_radius,
    as_svg,
    epsilon_against_steps,
    error_against_epsilon,
)
from noisette.training.report.numbers import duration, percent, power_of_ten, templates, upward
from noisette.training.report.statement import statement
from noisette.training.search import Found, HeldOutScore, Search

ALARMS = (0.01, 0.001)  # the false-positive rates of the table
RARELY = 0.01  # how often a belief may be above the stated one
CAPTIONS = (
    "An attack that raises more false alarms finds more members. No attack lies above the line, whatever it computes.",
    "δ bounds what goes beyond a factor of e to the power of ε. The guarantee at one δ is one point of this line.",
)
_LEAST = 1e-4  # false-positive rate at the left end of the figure
_POINTS = 60
_VISIBLE = 1e-12  # a smaller delta would only lengthen the axis


def attack_rows(attack: TradeOff) -> list[tuple[str, str]]:
    """What is measured, and the most that any attack reaches of it, rounded upwards."""
    rows = [
        *((f"members found, at {100 * rate:g} % false alarms", attack.true_positive_rate(rate)) for rate in ALARMS),
        ("members found minus false alarms (advantage)", attack.advantage),
        ("right answers, where members and others are equally many", attack.accuracy),
        (
            f"certainty about a member, 50 % before, exceeded in at most {100 * RARELY:g} of 100 trainings",
            attack.posterior(exceeded=RARELY),
        ),
    ]
    return [(name, upward_percent(share)) for name, share in rows]


def attack_sentence(attack: TradeOff, unit: str) -> str:
    """The bounds for readers who know no epsilon; the unit that the guarantee protects is a record or a user."""
    many, few = (upward_percent(attack.true_positive_rate(rate)) for rate in ALARMS)
    return (
        "Whoever sees everything released and knows all other records, and tries to tell whether one "
        f"{unit} took part, is right at most {upward_percent(attack.accuracy)} of the time; a coin toss is right "
        f"50 % of it. With false alarms for at most 1 % of the {unit}s that took no part, any attack finds at most "
        f"{many} of those that did; with at most 0.1 %, at most {few}."
    )


def attack_panels(attack: TradeOff) -> list[Panel]:
    """The trade-off curve as the most members found by false alarms, and delta against epsilon."""
    alarms = [_LEAST ** (1 - k / (_POINTS - 1)) for k in range(_POINTS)]
    found = [attack.true_positive_rate(rate) for rate in alarms]
    pairs = [(epsilon, delta) for epsilon, delta in attack.profile if epsilon > 0 and delta > _VISIBLE]
    panels = [
        Panel(
            "Most members that any attack finds",
            "false-positive rate",
            "true-positive rate",
            [Line("guessing", alarms, alarms, INK, 0.5, ":"), Line("any attack", alarms, found)],
        )
    ]
    if len(pairs) > 1:
        epsilons, deltas = zip(*pairs, strict=True)
        panels.append(Panel("Privacy profile: δ at every ε", "ε", "δ", [Line("all steps", epsilons, deltas, BLUE)]))
    return panels


def upward_percent(share: float) -> str:
    """A share as a percentage, rounded up: to one decimal, below one percent to two.

    >>> upward_percent(0.0711), upward_percent(0.00401), upward_percent(1.0)
    ('7.2 %', '0.41 %', '100 %')
    """
    digits = Decimal("0.01") if share < 0.01 else Decimal("0.1")
    value = (100 * Decimal(repr(float(share)))).quantize(digits, ROUND_CEILING)
    return "100 %" if value >= 100 else f"{value} %"


_LARGEST_TABLE = 12  # classes; a larger confusion matrix is in run.json alone


def rows_of_tests(facts: Facts) -> list[tuple[str, str]]:
    """The name and the value of each figure on the test examples; none if there are no such examples."""
    found = facts.test
    if found is None:
        return [] if facts.test_accuracy is None else [("test accuracy", percent(facts.test_accuracy))]
    if isinstance(found, ClassFigures):
        return [
            ("test accuracy", percent(found.accuracy)),
            ("base rate", f"{percent(found.base_rate)} (always the most frequent class)"),
            ("macro accuracy", f"{percent(found.macro_accuracy)} (mean over the classes)"),
            *([] if found.auc is None else [("AUC", f"{found.auc:.3f}")]),
        ]
    unit = f" {found.unit}" if found.unit else ""
    return [
        ("test RMSE", f"{found.rmse:.4g}{unit} (best constant: {found.base_rmse:.4g}{unit})"),
        ("test MAE", f"{found.mae:.4g}{unit} (best constant: {found.base_mae:.4g}{unit})"),
        *([] if facts.recipe.data.target is None else [("test targets", f"clipped to {_bounds(facts)}")]),
    ]


def _bounds(facts: Facts) -> str:
    """Between which bounds the targets are."""
    assert facts.recipe.data.target is not None, "a number is predicted"
    low, high = facts.recipe.data.target
    return f"{low:g}..{high:g} {facts.recipe.data.unit}".rstrip()


def set_of_tests(facts: Facts) -> str:
    """Of which examples the figures are."""
    share, clipped = facts.recipe.data.holdout, ""
    if facts.recipe.data.target is not None:
        clipped = f" Errors are of targets clipped to {_bounds(facts)}: how far a number lies outside does not count."
    if share is None:
        return f"Computed on the public test examples, exactly.{clipped}"
    return (
        f"Computed exactly, without noise, on the records held out: about {percent(share)} of all, drawn at random and "
        f"not trained on. These figures are not covered by the guarantee.{clipped}"
    )


def confusion(facts: Facts) -> list[tuple[str, tuple[int, ...]]]:
    """The rows of the confusion matrix, each with the name of its class; none for many classes or a number."""
    if not isinstance(facts.test, ClassFigures) or len(facts.test.confusion) > _LARGEST_TABLE:
        return []
    declared = facts.recipe.data.classes
    names = declared if isinstance(declared, tuple) else map(str, range(facts.classes))
    return list(zip(names, facts.test.confusion, strict=True))


def facts_of_search(search: Search, found: Found, ledger: Ledger) -> Facts:
    """What may be published about the best run of a search.

    The course of the run is left out: what was known of it at an earlier step costs the whole search as well. So is its
    time: a first run takes longer than later ones.

    Args:
        search: with its price.
        found: its best run.
        ledger: to which the search was charged.
    """
    outcome = found.outcome
    test = getattr(outcome.test, "accuracy", None)
    return replace(
        facts_of(outcome),
        epsilon=search.epsilon,
        released=tuple((event_facts(event), times) for event, times in ledger.events.items()),
        declarations=len(ledger.declarations),
        ledger_head=ledger.head,
        points=(),
        seconds=None,
        seconds_per_step=None,
        test_accuracy=test,
        search=_search_facts(search, found),
    )


def announcement(search: Search) -> list[str]:
    """What a search is about to do and to cost, in lines for the operator."""
    facts, privacy = _search_facts(search), search.recipe.privacy
    (_, steps), *_ = search.event.run
    lines = [
        f"A search over {search.space}",
        f"It costs epsilon {upward(search.epsilon)} at delta {power_of_ten(privacy.delta)}, also if it is stopped.",
        f"Its runs have {steps:,} steps with noise multiplier {search.noise_multiplier:.4g}.",
        f"Their number is {facts.runs}.",
        advice(facts, search.epsilon),
    ]
    return [line for line in lines if line]


def _search_facts(search: Search, found: Found | None = None) -> SearchFacts:
    number, score = NumberOfRuns.of(search.event), search.score
    held_out = deviation = None
    if isinstance(score, HeldOutScore):
        held_out, deviation = score.share, score.noise_multiplier / score.expected_records(search.declared_size)
    return SearchFacts(
        over={name: str(dimension) for name, dimension in search.space.dimensions.items()},
        settings=search.space.settings_of(found.recipe) if found else {},
        mean=search.event.mean,
        shape=f"{search.event.shape:g}",
        median=number.quantile(0.5),
        at_most=number.quantile(0.9),
        none=number.probability(0),
        compared=search.comparison.runs,
        epsilon_of_all=search.comparison.release_all,
        score=found.score if found and held_out else None,
        held_out=held_out,
        score_deviation=deviation,
    )


_PAGES = templates("noisette.training.report")

_WORDS = {
    "lr": "learning rate",
    "cosine": "cosine schedule",
    "averaging": "decay of averaged weights",
    "microbatch_size": "examples in memory at once",
    "compile": "step compiled",
    "lr_end": "last learning rate",
    "lr_epochs": "epochs until the last learning rate",
    "warmup": "share of steps with a rising learning rate",
    "floor": "least second moment, in variances of the noise",
    "average_last": "last share of steps with averaged weights",
    "largest_batch": "examples in a batch, at most",
    "bands": "steps over which noise is correlated",
}


def page(facts: Facts) -> str:
    """The report as HTML: result, settings, figures, privacy statement, and how to load the model.

    It has no script and loads nothing, so it does not change with time, and nobody learns that it is read.
    """
    attack = _attack(facts)
    return _PAGES.get_template("page.html").render(
        facts=facts,
        settings=_settings(facts),
        epsilon_figure=Markup(epsilon_against_steps(facts)),
        accuracy_figure=Markup(accuracy_against_epsilon(facts) or error_against_epsilon(facts)),
        error=_error(facts),
        test_rows=rows_of_tests(facts) if facts.test else [],
        test_set=set_of_tests(facts),
        test_kind="public test examples" if facts.recipe.data.holdout is None else "records held out",
        confusion=confusion(facts),
        radius_figure=Markup(accuracy_against_radius(facts.certified)),
        attack=attack_sentence(attack, facts.unit),
        attack_rows=attack_rows(attack),
        attack_figures=[
            (panel.title, Markup(as_svg([panel])), caption)
            for panel, caption in zip(attack_panels(attack), CAPTIONS, strict=False)  # the second needs a loss above 0
        ],
        advice=advice(facts.search, facts.epsilon) if facts.search else "",
        sections=statement(facts),
        loading=_loading(facts),
        predicts=bool(facts.features or facts.recipe.data.text),
        upward=upward,
        percent=percent,
        power_of_ten=power_of_ten,
    )


def _error(facts: Facts) -> str:
    """The error of a predicted number for the headline, "" if classes are predicted or nothing was tested."""
    return (
        f"Test error (RMSE) of {facts.test.rmse:.4g} {facts.test.unit}".rstrip()
        if isinstance(facts.test, NumberFigures)
        else ""
    )


def _attack(facts: Facts) -> TradeOff:
    """What is left to attacks, from the releases and the accountant that epsilon is computed with."""
    events = {event_of(event): times for event, times in facts.released}
    accountant = ACCOUNTANTS[facts.recipe.privacy.accountant] if facts.declarations < 2 else RenyiOdometer()
    return TradeOff(accountant.compose(events))


def _settings(facts: Facts) -> dict[str, list[tuple[str, str]]]:
    """The table of settings in groups: the name of each and its value with its unit."""
    recipe, privacy, training = facts.recipe, facts.recipe.privacy, asdict(facts.recipe.training)
    batch, epochs, seed, simulates = (training.pop(name) for name in ("batch_size", "epochs", "seed", "simulates"))
    example = f"{' × '.join(map(str, facts.input_shape))} {'words' if facts.word_vectors else 'numbers'}"
    start = f"public file {facts.public_weights[:8]}"
    components = f"{recipe.projection.components}, noise {recipe.projection.noise_multiplier:g}"
    return {
        "Data and model": [
            ("data", facts.data),
            ("declared size", f"{facts.declared_size:,} examples"),
            ("example", f"{example}, {'a number to predict' if recipe.data.target else f'{facts.classes} classes'}"),
            *_own(recipe.data),
            ("model", facts.model_name),
            ("trained parameters", f"{facts.parameters:,}"),
            *([("first weights", start)] if facts.public_weights else []),
            *_norm(facts),
        ],
        "Privacy": [
            ("epsilon", f"{upward(facts.epsilon)} (budget {privacy.epsilon:g})"),
            ("delta", power_of_ten(privacy.delta)),
            ("neighbours", facts.neighbouring),
            ("accountant", f"{privacy.accountant.upper()}, {facts.accountant_version}"),
            *_bound(facts),
            *([("principal components", components)] if recipe.projection.components else []),
            ("sampling", f"{facts.sampling}, rate {facts.sampling_rate:.4g}"),
        ],
        "Training": [
            ("steps", facts.progress),
            ("epochs", f"{epochs:g} × declared size"),
            ("expected batch", f"{batch:,} examples"),
            ("seed of the first weights", str(seed)),
            *_views(recipe.augmentation),
            *([("stands for a run", f"{simulates} times as large, at another epsilon")] if simulates > 1 else []),
            *((_WORDS.get(name, name), _plain(value)) for name, value in training.items() if value is not None),
            ("time", _time(facts)),
        ],
        **({"Search": rows_of_search(facts.search)} if facts.search else {}),
    }


def _time(facts: Facts) -> str:
    if facts.seconds is None or facts.seconds_per_step is None:
        return f"on {facts.device}; how long is not published, since it tells about the number of runs"
    return f"{duration(facts.seconds)} on {facts.device}, {1000 * facts.seconds_per_step:.3g} ms a step"


def _own(data: DataSection) -> list[tuple[str, str]]:
    """What is declared about data of the user's own beside size and classes."""
    columns = Columns.of(data.columns) if data.columns else None
    rows = []
    if data.mean:
        rows.append(("inputs", f"less {_listed(data.mean)}, divided by {_listed(data.deviation)}"))
    if columns is not None:
        rows.append(("columns", f"{len(columns.names)} declared, {columns.width} inputs"))
    if data.image_size is not None:
        rows.append(("images", f"{data.image_size[0]} x {data.image_size[1]}, {'grey' if data.grey else 'colour'}"))
    if data.skip_unlabelled:
        rows.append(("rows without a label", "left out"))
    if data.text is not None:
        rows.append(("text", f"the first {data.tokens} words of {data.text}"))
    if data.target is not None:
        rows.append(("target", f"{data.label}, {data.target[0]:g} to {data.target[1]:g} {data.unit}".rstrip()))
    if data.holdout is not None:
        rows.append(("held out to test with", percent(data.holdout)))
    return rows


def _bound(facts: Facts) -> list[tuple[str, str]]:
    """The noise multiplier, and the sensitivity that it multiplies."""
    noise, settings, privacy = f"{facts.noise_multiplier:.4g}", facts.recipe.lipschitz, facts.recipe.privacy
    if facts.lipschitz:
        clipped = f", gradient at the scores at most {settings.logit_clip:g}" if settings.logit_clip else ""
        deviations = ", ".join(f"{name} {value:.4g}" for name, value in facts.lipschitz.deviations.items())
        return [
            ("noise multiplier", noise),
            ("sensitivity", f"bounded by the layers, nothing clipped{clipped}"),
            ("loss", f"cross-entropy of the scores times {settings.tau:g}, divided by {settings.tau:g}"),
            ("deviations of the noise", f"{deviations} ({settings.allocation})"),
        ]
    assert facts.max_grad_norm is not None, "something is clipped"
    each = f", {facts.groups} layers to {facts.max_grad_norm / math.sqrt(facts.groups):.4g} each"
    return [
        ("noise multiplier", f"{noise} × clipping norm"),
        ("clipping norm", f"{facts.max_grad_norm:.4g}{each if facts.groups > 1 else ''}"),
        ("clipping", f"{privacy.clipping}: {CLIPPING_RULES[privacy.clipping].description}"),
        ("engine", f"{privacy.engine}: {ENGINES[privacy.engine].description}"),
        *((part.name, f"{part.share:.2%} of the noise budget".replace("%", " %")) for part in facts.parts),
    ]


def _norm(facts: Facts) -> list[tuple[str, str]]:
    model, public = facts.recipe.model, facts.recipe.public
    source = f", {public.examples} examples of {Path(public.data).name}" if public.data else ""
    norm = [("batch norm", f"{model.batch_norm}{source}")] if model.batch_norm else []
    weights = [("weights of convolutions", "standardised")] if model.weight_standardised else []
    features = [("fixed features", f"standardised{source}")] if model.standardised else []
    if model.whitened:
        features.append(("fixed features", f"whitened, {model.whitened:,} components{source}"))
    return [*norm, *weights, *features]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _views(section: AugmentationSection) -> list[tuple[str, str]]:
    moves = [*(["mirrored"] if section.flip else []), *([f"shifted by {section.shift}"] if section.shift else [])]
    views = [("views of a record", f"{section.views}, {' and '.join(moves)}")] if moves else []
    return [*views, *([("scores", "averaged over the image and its mirror image")] if section.test_flip else [])]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _loading(facts: Facts) -> str:
    """The Python code that builds the model and loads its weights."""
    recipe, shape = facts.recipe, repr((*facts.input_shape, *facts.word_vectors[1:]))
    words = f", {facts.words}" if facts.words else ""
    model = f"models.build({facts.model_name!r}, {shape}, {facts.classes}{words})"
    if recipe.projection.components:
        model = f"models.projected({recipe.model.name!r}, {shape}, {facts.classes}, {recipe.projection.components})"
    if facts.word_vectors:
        model = f"models.FixedFeatures(nn.Embedding{facts.word_vectors}, {model})"
    made = []
    if recipe.model.weight_standardised:
        made.append("model = weight_standardised(model)")
    if recipe.data.mean:
        constants = f"{recipe.data.mean}, {recipe.data.deviation}, {shape}"
        made.append(f"model = models.behind(Standardise.of_channels({constants}), model)")
    before, after = _restored_norm(facts)
    standardised = recipe.model.standardised  # the constants are saved with the weights
    mirrored = recipe.augmentation.test_flip
    layers = [
        *(["MirrorAverage"] if mirrored else []),
        *(["Standardise"] if recipe.data.mean else []),
        *(["Whitening"] if recipe.model.whitened else []),
        *(["weight_standardised"] if recipe.model.weight_standardised else []),
    ]
    imports = [
        "from noisette import models",
        *([f"from noisette.nn import {', '.join(layers)}"] if layers else []),
        "from safetensors.torch import load_file",
        *(["from torch import nn"] if facts.word_vectors else []),
        *(["import torch"] if standardised or recipe.model.whitened else []),
        *(["from noisette.data import Declaration, load"] if after else []),
    ]
    if before or after:
        imports.append(f"from noisette.training.build import {'public_examples, ' if after else ''}replace_batch_norm")
    lines = [
        *sorted(imports),
        "",
        f"model = {model}",
        *made,
        *([f"model = models.standardised(model, model.features(torch.zeros(2, *{shape})))"] if standardised else []),
        *(_whitened(recipe.model.whitened, shape) if recipe.model.whitened else []),
        *before,
        f'{"MirrorAverage(model)" if mirrored else "model"}.load_state_dict(load_file("model.safetensors"))',
        *after,
        *(["model = MirrorAverage(model)"] if mirrored else []),
        "model.eval()",
    ]
    return "\n".join(lines) + "\n"


def _whitened(components: int, shape: str) -> list[str]:
    """The lines that whiten the fixed features; the constants are saved with the weights."""
    return [
        f"numbers = model.features(torch.zeros(1, *{shape})).numel()",
        f"whitening = Whitening(torch.zeros(numbers), torch.zeros({components}, numbers))",
        "model = models.whitened(model, whitening)",
    ]


def _restored_norm(facts: Facts) -> tuple[list[str], list[str]]:
    """The lines that replace batch norm before and after the weights are loaded.

    Norms whose statistics are constants are loaded as batch norms and need no line.
    """
    norm, public = facts.recipe.model.batch_norm, facts.recipe.public
    fixed = bool(facts.recipe.projection.components or facts.word_vectors)
    trained, name = "model.head" if fixed else "model", f'"{norm}"'
    if norm in (None, "public", "frozen"):
        return [], []
    if not public.data:
        return [f"replace_batch_norm({trained}, {name})"], []
    data = Path(public.data).name
    own = "" if data in names() else ", declaration=Declaration(classes=..., size=...)"
    chosen = f"public_examples(load({data!r}{own}), examples={public.examples}, seed={public.seed})"
    given = "model.features(public)" if fixed else "public"
    return [], [f"public = {chosen}", f"replace_batch_norm({trained}, {name}, {given})"]
