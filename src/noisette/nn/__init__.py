"""Layers and functions for the user's own models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisette.nn.batch_norm import *  # noqa: F403
    from noisette.nn.features import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Torch is imported with the first name that needs it, so that the names of the models are known without it.
    for module in ("batch_norm", "features"):
        found = import_module(f"{__name__}.{module}")
        if name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
