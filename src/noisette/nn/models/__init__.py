"""The built-in models: names, and factories that are imported on first use, so that the names are known without torch.

To add one, write its factory and a test, and add a line to the registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from noisette.nn.models.factory import *  # noqa: F403
    from noisette.nn.models.networks import *  # noqa: F403


@dataclass(frozen=True)
class BuiltIn:
    """A built-in model: its factory and one line for help texts.

    The factory is called with (shape of an example, classes), or is ``module:function`` of this folder.
    """

    factory: str | Callable[..., nn.Module]
    description: str
    of_words: bool = False  # examples are numbers of words, and ``words``, how many there are, is one more argument


REGISTRY: dict[str, BuiltIn] = {
    "linear": BuiltIn("networks:linear", "logistic regression"),
    "mlp": BuiltIn("networks:mlp", "two hidden layers of 128 tanh units"),
    "table": BuiltIn("networks:table", "hidden layer of 64 tanh units of norm one, for tables"),
    "cnn": BuiltIn("networks:cnn", "two convolutions and two linear layers, with tanh"),
    "scattering": BuiltIn("networks:scattering", "linear layer on fixed wavelet features"),
    "patches-and-scattering": BuiltIn("networks:patches_and_scattering", "the same, beside fixed patches"),
    "resnet-18": BuiltIn("networks:resnet", "ResNet-18 for 32 x 32 pixels, with batch norm"),
    "transformer": BuiltIn("networks:WordTransformer", "small Transformer for texts", of_words=True),
    "word-counts": BuiltIn("networks:word_counts", "linear layer on counts of a text's words", of_words=True),
    "ranked-word-counts": BuiltIn("networks:ranked_word_counts", "the same, common words weigh less", of_words=True),
    "lipschitz-linear": BuiltIn("networks:lipschitz_linear", "1-Lipschitz linear layer"),
    "lipschitz-dense": BuiltIn("networks:lipschitz_dense", "1-Lipschitz network with a hidden layer of 128 units"),
    "scattering-lipschitz-linear": BuiltIn(
        "networks:scattering_lipschitz_linear", "lipschitz-linear on fixed wavelet features"
    ),
}


def names() -> tuple[str, ...]:
    """The names of the built-in models."""
    return tuple(REGISTRY)


def imported(name: str) -> Any:
    """What ``package.module:callable`` names in code of one's own; a ``ValueError`` if that cannot be imported."""
    if ":" not in name:
        own = "give your own as package.module:callable or a folder of Hugging Face"
        raise ValueError(f"no model {name!r}; there are {', '.join(REGISTRY)}, or {own}")
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        module, _, called = name.partition(":")
        stem = Path(module).name.removesuffix(".py")
        of_file = f"write {stem}:{called}, and start noisette in the folder of {stem}.py"
        way_out = "name a function that can be imported from this folder" if stem == module else of_file
        raise ValueError(f"no model {name!r}: {error}; {way_out}") from error
    if not callable(found):
        raise ValueError(f"{name} is of type {type(found).__name__}; expected a function that returns a model")
    return found


def check(name: str) -> None:
    """Check that a model has this name, and import one's own, or raise a ``ValueError``."""
    if name not in REGISTRY and not Path(name).is_dir():
        imported(name)


def __getattr__(name: str) -> Any:
    for module in ("factory", "networks"):
        found = import_module(f"{__name__}.{module}")
        if name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
