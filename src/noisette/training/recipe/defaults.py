"""Recipes that are known to work on the built-in data sets, and what suits data of the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from noisette.training.defaults import batches_for, delta_for
from noisette.training.recipe.recipe import Recipe
from noisette.training.recipe.sections import DataSection, ModelSection, PrivacySection, TrainingSection
from noisette.training.recipe.suited import suited_model

_ADAM_RATE = 0.003
_COUNTS = TrainingSection(epochs=15, lr=10.0, momentum=0.9, cosine=False, average_last=0.5)  # of linear layers
_COUNTS_NORM = 0.7
_OF_COUNTS = ("word-counts", "ranked-word-counts", "word-counts-and-vectors")
_TEXT_SIZES = {"sst2": 67_349, "imdb": 25_000, "ag-news-words": 18_349}
_TEXTS = TrainingSection(epochs=10, batch_size=1024, lr=0.01, optimizer="adam")
_VECTORS = TrainingSection(epochs=20, batch_size=1024, lr=2.0, momentum=0.9)
_ENCODER = TrainingSection(epochs=15, batch_size=2500, lr=1.0, momentum=0.9, averaging=0.9)
_PRETRAINED = TrainingSection(epochs=5, batch_size=1024, lr=0.0005, optimizer="adam", microbatch_size=64)
# Settings that are known to work on the built-in data sets.
_IMAGES = TrainingSection(epochs=40, batch_size=4096, lr=4.0, momentum=0.9, averaging=0.98)
_FEW_IMAGES = TrainingSection(epochs=40, batch_size=1024, lr=4.0, momentum=0.9, averaging=0.98)
_FEATURES = PrivacySection(max_grad_norm=0.1)
_KNOWN_TO_WORK = {
    "digits": (PrivacySection(delta=1e-4), TrainingSection(batch_size=360, cosine=False, averaging=0.95)),
    "mnist": (_FEATURES, _IMAGES),
    "fashion-mnist": (_FEATURES, _IMAGES),
    "cifar10": (_FEATURES, _IMAGES),
    "kmnist": (_FEATURES, _FEW_IMAGES),
    "emnist-letters": (_FEATURES, _FEW_IMAGES),
    "adult": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0)),
    "ag-news": (PrivacySection(), _VECTORS),
    "sst2-glove": (PrivacySection(), _VECTORS),
    "imdb-glove": (PrivacySection(), _ENCODER),
}


def default_recipe(data: Mapping[str, Any], model: str | None = None, optimizer: str | None = None) -> Recipe:
    """A recipe that is known to work for a built-in data set; for another one, what suits its kind and declared size.

    Args:
        data: fields of the recipe's table ``data``.
        model: the name of the model, if it is chosen.
        optimizer: the name of the optimizer, if it is chosen.

    >>> default_recipe({"name": "own.csv", "size": 700}).training.batch_size
    210
    """
    section = DataSection(**data)
    name = model or suited_model(section)
    if known := _KNOWN_TO_WORK.get(section.name):
        privacy, training = known
    elif section.name in _TEXT_SIZES:
        privacy, training = _of_texts(PrivacySection(), _TEXT_SIZES[section.name], name)
    else:
        privacy, training = _of_own_data(section, name)
    if model is not None and Path(model).is_dir():
        training = replace(_PRETRAINED, batch_size=training.batch_size)
    if optimizer in ("adam", "adam-bc") and optimizer != training.optimizer:
        training = replace(training, optimizer=optimizer, lr=_ADAM_RATE, momentum=0.0)
    elif optimizer == "sgd" != training.optimizer:
        training = replace(training, optimizer=optimizer, lr=TrainingSection().lr)
    return Recipe(section, ModelSection(name), privacy=privacy, training=training)


def _of_own_data(data: DataSection, model: str) -> tuple[PrivacySection, TrainingSection]:
    """Delta, batches, epochs and learning rate by the declared size, as :mod:`noisette.training.defaults` has them."""
    if data.size is None or data.size < 1:
        return PrivacySection(), TrainingSection(lr=None) if data.text is None else _TEXTS
    records = max(1, round(data.size * (1 - (data.holdout or 0.0))))
    delta = PrivacySection(delta=delta_for(records))
    if data.text is not None:
        return _of_texts(delta, records, model)
    batches = batches_for(records)
    return delta, TrainingSection(lr=None, batch_size=batches.expected_batch_size, epochs=batches.epochs)


def _of_texts(privacy: PrivacySection, records: int, model: str) -> tuple[PrivacySection, TrainingSection]:
    """60 steps of a quarter of the texts for their counts; other models cost more, and take smaller batches."""
    if model in _OF_COUNTS:
        return replace(privacy, max_grad_norm=_COUNTS_NORM), replace(_COUNTS, batch_size=math.ceil(records / 4))
    return privacy, replace(_TEXTS, batch_size=min(_TEXTS.batch_size, math.ceil(records / 10)))
