"""A model given on the command line as ``package.module:callable``."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from noisette.lipschitz.bound import LipschitzBound

CLASSES = 10  # if no data set gives their number


@dataclass(frozen=True)
class Target:
    """A model or a Lipschitz bound, its loss of one example, and the arguments of the loss."""

    model: nn.Module | LipschitzBound
    loss: Callable[..., Any]
    batch: tuple[Any, ...]


def given_shape(given: str | None) -> tuple[int, ...] | None:
    """The shape of one example, parsed from a text such as 3,32,32 or 3x32x32.

    Raises:
        ValueError: the text has another form.
    """
    if given is None:
        return None
    parts = given.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"expected --input-shape as whole numbers of at least 1, such as 3,32,32, got {given!r}")
    return tuple(int(part) for part in parts)


def made_by(target: str, shape: tuple[int, ...] | None, classes: int = CLASSES) -> Any:
    """What the callable returns, called without arguments or, if it takes two, with (shape of an example, classes).

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
        raise ValueError(f"{target} is of type {type(factory).__name__}; expected a function that returns a model")
    required = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if not required:
        return factory()
    if len(required) != 2:
        raise ValueError(
            f"{target} has {len(required)} required arguments; expected none, or (shape, number of classes)"
        )
    if shape is None:
        raise ValueError(f"{target} takes the shape of an example: give it with --input-shape")
    return factory(shape, classes)


# What a model may raise that is called with other inputs than it takes.
WRONG_CALL = (RuntimeError, TypeError, LookupError, AttributeError)


def wrong_inputs(target: str, error: Exception) -> ValueError:
    """What to tell when a model was called with other inputs than it takes."""
    return ValueError(
        f"{target} does not accept its inputs: {error}; give the shape of one example with --input-shape, or return "
        "(module, inputs) with what it takes: a tensor, a tuple of arguments, or a dictionary of arguments by name. "
        "For a dictionary as the one argument, return (module, (dictionary,))"
    )


def target_of(name: str, made: Any, shape: tuple[int, ...] | None, examples: int) -> Target:
    """The model that ``name`` returned, with its loss and examples.

    Args:
        name: as it was given.
        made: a module or a Lipschitz bound, (one of them, inputs), or (one of them, loss, arguments of the loss).
            Inputs and arguments are a tensor, positional arguments, or a dictionary of arguments by name, such as a
            tokenizer of Hugging Face gives. Without a loss, all outputs are added up.
        shape: of one example, where ``made`` has none; random inputs of this shape are made up.
        examples: how many are made up.

    Raises:
        ValueError: no module was returned, or neither inputs nor a shape are given.
    """
    import torch
    from torch import Tensor, nn

    from noisette.lipschitz.bound import LipschitzBound
    from noisette.run.explain import sum_of_outputs

    model: Any = made
    loss: Callable[..., Any] = sum_of_outputs
    inputs: Any = None
    if isinstance(made, tuple) and len(made) == 3:
        model, loss, inputs = made
    elif isinstance(made, tuple) and len(made) == 2:
        model, inputs = made
    if not isinstance(model, nn.Module | LipschitzBound):
        raise ValueError(
            f"{name} returned a {type(model).__name__}; expected a torch.nn.Module or a LipschitzBound, (one of them, "
            "inputs), or (one of them, loss, arguments of the loss)"
        )
    if inputs is None and shape is None:
        raise ValueError(f"{name} returned no example inputs: give the shape of one example with --input-shape")
    if inputs is None:
        return Target(model, loss, (torch.randn(examples, *(shape or ())),))
    if isinstance(inputs, Mapping):
        of_examples = {str(key): value for key, value in inputs.items() if isinstance(value, Tensor)}
        constants = {str(key): value for key, value in inputs.items() if not isinstance(value, Tensor)}
        return Target(model, lambda model, named: loss(model, **named, **constants), (of_examples,))
    return Target(model, loss, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs))
