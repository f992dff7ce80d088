"""Layers and functions for the user's own models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisette.nn.public import *  # noqa: F403 - the list is there


def __getattr__(name: str) -> Any:
    # Torch is imported with the first name that needs it, so that the names of the models are known without it.
    import noisette.nn.public

    return getattr(noisette.nn.public, name)
