"""A model named on the command line, as ``package.module:callable``."""

from __future__ import annotations

import inspect
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CLASSES = 10  # where nothing says how many there are
_EXAMPLES = 2


def given_shape(given: str | None) -> tuple[int, ...] | None:
    """The shape of one example as it was written, such as 3,32,32 or 3x32x32.

    Raises:
        ValueError: it was written in another way.
    """
    if given is None:
        return None
    parts = given.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"expected --input-shape as whole numbers of at least one, such as 3,32,32, got {given!r}")
    return tuple(int(part) for part in parts)


def made_by(target: str, shape: tuple[int, ...] | None, classes: int = CLASSES) -> Any:
    """What the callable makes: called with nothing, or with (shape of an example, classes) if it takes two arguments.

    Raises:
        ValueError: there is no such callable, or it takes other arguments.
    """
    if ":" not in target:
        raise ValueError(f"expected MODULE:CALLABLE, such as mypackage.models:small, got {target!r}")
    try:
        factory = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no {target}: {error}") from error
    if not callable(factory):
        raise ValueError(f"{target} is a {type(factory).__name__}; expected something to call that makes the model")
    required = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if not required:
        return factory()
    if len(required) != 2:
        raise ValueError(f"{target} needs {len(required)} arguments; it may take none, or (shape, number of classes)")
    if shape is None:
        raise ValueError(f"{target} wants the shape of an example: give it with --input-shape")
    return factory(shape, classes)


def model_and_inputs(target: str, made: Any, shape: tuple[int, ...] | None) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model that was made, and inputs for it: those that came with it, or zeros of the given shape.

    Raises:
        ValueError: no module was made, or nothing says what it takes.
    """
    import torch
    from torch import Tensor, nn

    inputs = None
    if isinstance(made, tuple) and len(made) == 2:
        made, inputs = made
        inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not isinstance(made, nn.Module):
        raise ValueError(f"{target} returned a {type(made).__name__}; expected a torch.nn.Module, or (module, inputs)")
    if inputs is None and shape is None:
        raise ValueError(f"{target} returned no example inputs: give the shape of one example with --input-shape")
    return made, inputs if inputs is not None else (torch.zeros(_EXAMPLES, *(shape or ())),)
