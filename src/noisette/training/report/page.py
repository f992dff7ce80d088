"""The report: one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from noisette.accounting import TradeOff
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.accounting.serialization import event_of
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data import names
from noisette.data.columns import Columns
from noisette.training.predictions import NumberFigures
from noisette.training.recipe import AugmentationSection, DataSection
from noisette.training.report.attacks import CAPTIONS, attack_panels, attack_rows, attack_sentence
from noisette.training.report.facts import Facts
from noisette.training.report.figures import (
    accuracy_against_epsilon,
    accuracy_against_radius,
    epsilon_against_steps,
    error_against_epsilon,
)
from noisette.training.report.numbers import duration, percent, power_of_ten, upward
from noisette.training.report.of_tests import confusion, rows_of_tests, set_of_tests
from noisette.training.report.plan_figures import as_svg
from noisette.training.report.searched import advice, rows_of_search
from noisette.training.report.statement import statement
from noisette.training.report.templates import templates

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
    return TradeOff(ACCOUNTANTS[facts.recipe.privacy.accountant].compose(events))


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
