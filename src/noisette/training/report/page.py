"""The report: one page that needs nothing but itself."""

from __future__ import annotations

import math

from markupsafe import Markup

from noisette.data import names
from noisette.training.report.certified_figure import accuracy_against_radius
from noisette.training.report.facts import Claim, Facts
from noisette.training.report.figures import accuracy_against_epsilon, accuracy_against_steps, epsilon_against_steps
from noisette.training.report.numbers import duration, percent, power_of_ten, upward
from noisette.training.report.statement import statement
from noisette.training.report.templates import templates

_PAGES = templates("noisette.training.report")

_WORDS = {
    "lr": "learning rate",
    "cosine": "cosine schedule",
    "averaging": "decay of averaged weights",
    "microbatch_size": "examples in memory at once",
}


def page(facts: Facts) -> str:
    """The report as HTML: result, settings, figures, privacy statement, and how to load the model.

    It holds no script and no address, so it shows the same in ten years and tells nobody that it is read.
    """
    return _PAGES.get_template("page.html").render(
        facts=facts,
        settings=_settings(facts),
        epsilon_figure=Markup(epsilon_against_steps(facts)),
        accuracy_figure=Markup(accuracy_against_epsilon(facts) if facts.claim else accuracy_against_steps(facts)),
        radius_figure=Markup(accuracy_against_radius(facts.certified)),
        sections=statement(facts),
        loading=_loading(facts),
        upward=upward,
        percent=percent,
        power_of_ten=power_of_ten,
    )


def _settings(facts: Facts) -> list[tuple[str, list[tuple[str, str]]]]:
    """The table of settings: what each is called and its value with its unit, in groups."""
    return [
        (
            "Data and model",
            [
                ("data", facts.data),
                ("declared size", f"{facts.declared_size:,} examples"),
                ("example", f"{_example(facts)}, {facts.classes} classes"),
                ("model", facts.model),
                ("trained parameters", f"{facts.parameters:,}"),
                *_start(facts),
                *_norm(facts),
            ],
        ),
        (
            "Privacy",
            [
                *_promised(facts.claim),
                *_bound(facts),
                *_projection(facts),
                ("sampling", f"{facts.sampling}, rate {facts.sampling_rate:.4g}"),
            ],
        ),
        (
            "Training",
            [
                ("steps", facts.progress),
                ("epochs", f"{facts.epochs:g} × declared size"),
                ("expected batch", f"{facts.expected_batch_size:,} examples"),
                ("seed of the first weights", str(facts.seed)),
                *((_WORDS.get(name, name), _plain(value)) for name, value in facts.learning.items()),
                ("time", f"{duration(facts.seconds)} on {facts.device}, {1000 * facts.seconds_per_step:.3g} ms a step"),
            ],
        ),
    ]


def _promised(claim: Claim | None) -> list[tuple[str, str]]:
    if claim is None:
        return [("claim", "none")]
    return [
        ("epsilon", f"{upward(claim.epsilon)} (budget {claim.budget:g})"),
        ("delta", power_of_ten(claim.delta)),
        ("neighbours", claim.neighbouring),
        ("accountant", f"{claim.accountant.upper()}, {claim.accountant_version}"),
    ]


def _bound(facts: Facts) -> list[tuple[str, str]]:
    """The noise multiplier, and what it multiplies."""
    noise = f"{facts.noise_multiplier:.4g}"
    if lipschitz := facts.lipschitz:
        clipped = f", gradient at the scores within {lipschitz.logit_clip:g}" if lipschitz.logit_clip else ""
        deviations = ", ".join(f"{name} {value:.4g}" for name, value in lipschitz.deviations.items())
        return [
            ("noise multiplier", noise),
            ("bound", f"by the layers, nothing clipped{clipped}"),
            ("loss", f"cross-entropy of the scores times {lipschitz.tau:g}, divided by it"),
            ("deviations of the noise", f"{deviations} ({lipschitz.allocation})"),
        ]
    assert facts.max_grad_norm is not None, "there is no other bound"
    each = f", {facts.layers} layers to {facts.max_grad_norm / math.sqrt(facts.layers):.4g} each"
    return [
        ("noise multiplier", f"{noise} × bound"),
        ("bound (max. gradient norm)", f"{facts.max_grad_norm:.4g}{each if facts.layers > 1 else ''}"),
    ]


def _start(facts: Facts) -> list[tuple[str, str]]:
    if not facts.public_weights:
        return []
    return [("first weights", f"public file {facts.public_weights[:8]}")]


def _norm(facts: Facts) -> list[tuple[str, str]]:
    public = f", {facts.public_examples} examples of {facts.public_data}" if facts.public_examples else ""
    norm = [("batch norm", f"{facts.batch_norm}{public}")] if facts.batch_norm else []
    return [*norm, ("fixed features", f"standardised{public}")] if facts.standardised else norm


def _projection(facts: Facts) -> list[tuple[str, str]]:
    if not facts.components:
        return []
    return [("principal components", f"{facts.components}, noise {facts.components_noise_multiplier:g}")]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _example(facts: Facts) -> str:
    return f"{' × '.join(map(str, facts.input_shape))} {'words' if facts.word_vectors else 'numbers'}"


def _loading(facts: Facts) -> str:
    shape = repr((*facts.input_shape, *facts.word_vectors[1:]))
    model = f"models.build({facts.model!r}, {shape}, {facts.classes})"
    if facts.components:
        model = f"models.projected({facts.model!r}, {shape}, {facts.classes}, {facts.components})"
    if facts.word_vectors:
        model = f"models.FixedFeatures(nn.Embedding{facts.word_vectors}, {model})"
    before, after = _norm_put_back(facts)
    constants: list[str] = []
    if facts.standardised:  # with constants that come with the weights
        constants = [f"model = models.standardised(model, model.features(torch.zeros(2, *{shape})))"]
    imports = ["from noisette import models", "from safetensors.torch import load_file"]
    if facts.word_vectors:
        imports.append("from torch import nn")
    if constants:
        imports.append("import torch")
    if before or after:
        imports.append(f"from noisette.training.build import {'public_examples, ' if after else ''}replace_batch_norm")
    if after:
        imports.append("from noisette.data import Declaration, load")
    lines = [
        *sorted(imports),
        "",
        f"model = {model}",
        *constants,
        *before,
        'model.load_state_dict(load_file("model.safetensors"))',
        *after,
        "model.eval()",
    ]
    return "\n".join(lines) + "\n"


def _norm_put_back(facts: Facts) -> tuple[list[str], list[str]]:
    """How the model gets its norms before and after its weights; a batch norm does for those whose statistics stay."""
    fixed = bool(facts.components or facts.word_vectors)
    trained, name = "model.head" if fixed else "model", f'"{facts.batch_norm}"'
    if facts.batch_norm in ("", "public", "frozen"):
        return [], []
    if not facts.public_examples:
        return [f"replace_batch_norm({trained}, {name})"], []
    own = "" if facts.public_data in names() else ", declaration=Declaration(classes=..., size=...)"
    loaded = f"load({facts.public_data!r}{own})"
    chosen = f"public_examples({loaded}, examples={facts.public_examples}, seed={facts.public_seed})"
    given = "model.features(public)" if fixed else "public"
    return [], [f"public = {chosen}", f"replace_batch_norm({trained}, {name}, {given})"]
