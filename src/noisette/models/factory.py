"""Builds a model from its name: a built-in one, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisette.models.fixed_features import FixedFeatures
from noisette.models.hugging_face import text_model
from noisette.models.local_folder import is_folder_of_model
from noisette.models.registry import REGISTRY, BuiltIn
from noisette.models.shapes import Shape, numbers_of
from noisette.nn.evaluation import in_evaluation

Factory = Callable[..., nn.Module]  # called with shape and classes, and with words


def build(name: str, shape: Shape, classes: int, words: int = 0) -> nn.Module:
    """A fresh model: one of :func:`names`, ``package.module:callable``, or a folder of Hugging Face.

    Args:
        name: which one; your own callable is called with (shape, classes), and for numbers of words with words too.
        shape: that of an example.
        classes: the number of scores.
        words: how many numbers of words there are, if an example is a text of such numbers.

    Raises:
        ValueError: there is no such model, or it does not return one score per class for an example of this shape.
    """
    try:
        model = _made(name, shape, classes, words)
    except TypeError as error:
        called = "(shape of an example, classes, words)" if words else "(shape of an example, classes)"
        raise ValueError(f"the model {name!r} is called with {called}, but: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    try:
        with torch.no_grad(), in_evaluation(model):
            scores = model(torch.zeros(2, *shape))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            f"the model {name!r} cannot take examples of shape {tuple(shape)}, as one tensor with a batch dimension "
            f"before it: {error}; return a model that takes this tensor alone"
        ) from error
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"the output of model {name!r} does not fit the labels: {classes} classes, output for 2 examples: {got}"
        )
    return model


def projected(name: str, shape: Shape, classes: int, components: int) -> FixedFeatures:
    """A model behind a fixed projection of the flattened example; the projection's weight is left to be set.

    The weight has shape (components, numbers of an example).

    Raises:
        ValueError: there are more components than numbers in an example, or the model does not fit them.
    """
    if components > numbers_of(shape):
        raise ValueError(f"expected components <= {numbers_of(shape)}, the numbers of an example, got {components}")
    projection = nn.Linear(numbers_of(shape), components, bias=False).requires_grad_(False)
    return FixedFeatures(nn.Sequential(nn.Flatten(), projection), build(name, (components,), classes))


def _made(name: str, shape: Shape, classes: int, words: int) -> nn.Module:
    if is_folder_of_model(name):
        if not words:
            raise ValueError(f"{name} is a model for texts; give it a data set of texts")
        return text_model(Path(name), classes)
    if name not in REGISTRY and Path(name).is_dir():
        raise ValueError(f"the folder {name} holds no config.json: it is no model that save_pretrained has written")
    if name not in REGISTRY:
        factory = _users_own(name)
        return factory(shape, classes, words) if words else factory(shape, classes)
    model = REGISTRY[name]
    if model.of_words != bool(words):
        able = ", ".join(known for known, other in REGISTRY.items() if other.of_words)
        raise ValueError(
            f"the model {name!r} takes no texts whose words are numbers; there are {able}, or a folder of Hugging Face"
            if words
            else f"the model {name!r} takes texts whose words are numbers; there are none in these data"
        )
    return _built_in(model)(shape, classes, words=words) if words else _built_in(model)(shape, classes)


def _built_in(model: BuiltIn) -> Factory:
    def resolved(value: Any) -> Any:
        return _imported(f"noisette.models.{value}") if isinstance(value, str) else value

    return partial(resolved(model.factory), **{name: resolved(value) for name, value in model.settings.items()})


def _users_own(name: str) -> Factory:
    if not name.partition(":")[2]:
        raise ValueError(
            f"no model {name!r}; there are {', '.join(REGISTRY)}, or give your own as package.module:callable "
            "or a folder of Hugging Face"
        )
    try:
        return _imported(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no model {name!r}: {error}") from error


def _imported(name: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
