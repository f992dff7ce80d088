"""The report: one page that needs nothing but itself."""

from __future__ import annotations

import math

from markupsafe import Markup

from noisette.report.facts import Facts
from noisette.report.figures import accuracy_against_epsilon, epsilon_against_steps
from noisette.report.numbers import duration, percent, power_of_ten, upward
from noisette.report.statement import statement
from noisette.report.templates import templates

_PAGES = templates("report")

_WORDS = {
    "lr": "learning rate",
    "cosine": "cosine schedule",
    "averaging": "decay of averaged weights",
    "piece_size": "examples in memory at once",
}


def page(facts: Facts) -> str:
    """The report as HTML: result, settings, figures, privacy statement, and how to load the model.

    It holds no script and no address, so it shows the same in ten years and tells nobody that it is read.
    """
    return _PAGES.get_template("page.html").render(
        facts=facts,
        settings=_settings(facts),
        epsilon_figure=Markup(epsilon_against_steps(facts)),
        accuracy_figure=Markup(accuracy_against_epsilon(facts)),
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
            ],
        ),
        (
            "Privacy",
            [
                ("epsilon", f"{upward(facts.epsilon)} (budget {facts.budget:g})"),
                ("delta", power_of_ten(facts.delta)),
                ("neighbours", facts.neighbouring),
                ("accountant", f"{facts.accountant.upper()}, {facts.accountant_version}"),
                ("noise multiplier", f"{facts.noise_multiplier:.4g} × bound"),
                ("bound (max. gradient norm)", _bound(facts)),
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


def _bound(facts: Facts) -> str:
    each = f", {facts.layers} layers to {facts.max_grad_norm / math.sqrt(facts.layers):.4g} each"
    return f"{facts.max_grad_norm:.4g}{each if facts.layers > 1 else ''}"


def _start(facts: Facts) -> list[tuple[str, str]]:
    if not facts.public_weights:
        return []
    return [("first weights", f"public file {facts.public_weights[:8]}")]


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
    return (
        "from noisette import models\n"
        "from safetensors.torch import load_file\n"
        + ("from torch import nn\n" if facts.word_vectors else "")
        + f"\nmodel = {model}\n"
        'model.load_state_dict(load_file("model.safetensors"))\n'
        "model.eval()\n"
    )
