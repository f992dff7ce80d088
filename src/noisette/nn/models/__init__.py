"""Built-in models by name, the factories that build them, and their layers."""

from typing import TYPE_CHECKING, Any

from noisette.nn.models.registry import names as names

if TYPE_CHECKING:
    from noisette.nn.models.public import *  # noqa: F403 - the list is there


def __getattr__(name: str) -> Any:
    # Torch is imported with the first name that needs it, so that the names of the models are known without it.
    import noisette.nn.models.public

    return getattr(noisette.nn.models.public, name)
