"""``noisette doctor``: can a model be trained privately, which rules serve it, and what will a step cost?"""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette.cli.options import DataDir, flag, option, plain_errors, whole_numbers
from noisette.data import load, names
from noisette.data.columns import Columns
from noisette.errors import Mistakes, PrivacyError, count, raised_by
from noisette.nn.models import imported
from noisette.training.recipe import read_schema

_COLUMNS = "What is declared about the columns of a table, which gives the shape."
_TARGET = (
    "Function of nothing, or of (shape of an example, number of classes), where an argument named shape may have a "
    "default. It returns a torch.nn.Module or a LipschitzBound, or (one of them, inputs), or (one of them, loss of one "
    "example, arguments of the loss). Inputs and arguments are a tensor, a tuple, or a dictionary of arguments by name."
)
# What a model may raise that is called with other inputs than it takes.
_WRONG_CALL = (RuntimeError, TypeError, LookupError, AttributeError)


@plain_errors()
def doctor(
    target: Annotated[str, typer.Argument(metavar="MODULE:CALLABLE", help=_TARGET)],
    data: Annotated[str | None, option("NAME", "Built-in data set that gives the shape of the random inputs.")] = None,
    input_shape: Annotated[str | None, option("N,N,..", "Shape of one example, such as 3,32,32.")] = None,
    columns: Annotated[Path | None, option("SCHEMA.toml", _COLUMNS)] = None,
    examples: Annotated[int, option("N", "Random examples in the microbatch, if the function returns none.")] = 32,
    bf16: Annotated[bool, flag("--bf16", "Call the model under autocast to bfloat16.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Say whether a model can be trained privately, which rule serves each parameter, and what a step costs.

    A few private and plain steps are taken on random or given examples, without moving the weights. Only the shapes of
    a data set are used. Exit code 0 if the model is accepted, 1 if it is refused, 2 for invalid input.
    """
    mistakes = Mistakes()
    if sum(given is not None for given in (data, input_shape, columns)) > 1:
        mistakes.add("--data, --columns and --input-shape each give the shape of an example; give one of them")
    if data is not None and data not in names():
        mistakes.add(f"expected --data as one of {', '.join(names())}, got {data!r}; or give --input-shape")
    mistakes.check(lambda: count(examples=examples))
    shape, classes = mistakes.check(lambda: _declared(columns, input_shape)) or (None, 10)
    factory = mistakes.check(lambda: _factory(target))
    mistakes.refuse()
    if data is not None:
        found = load(data, data_dir=data_dir)
        shape, classes = found.train.inputs.shape[1:], found.classes
    made = _made_by(target, factory, shape, classes)  # before torch is imported, which takes seconds

    import torch

    from noisette.run.explain import explain

    model, loss, batch = _parts_of(target, made, shape, examples)
    try:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            explanation = explain(model, loss, *batch)
    except PrivacyError:
        raise
    except _WRONG_CALL as error:
        raise ValueError(
            f"{target} does not accept its inputs: {error}; give the shape of one example with --input-shape, or "
            "return (module, inputs) with what it takes: a tensor, a tuple of arguments, or a dictionary of arguments "
            "by name. For a dictionary as the one argument, return (module, (dictionary,))"
        ) from error
    typer.echo(explanation)
    if factory is not None and not inspect.signature(factory).parameters:  # as a loop of one's own may have it
        typer.echo(f"noisette train --model {target} would call it with (shape of an example, number of classes).")
    if explanation.refused:
        raise typer.Exit(1)


def _declared(columns: Path | None, input_shape: str | None) -> tuple[tuple[int, ...] | None, int]:
    """The shape of an example and the number of classes, 10 where nothing tells it, of what is declared."""
    if columns is not None:
        known = read_schema(columns).get("classes", 1)  # a number is one output
        return (Columns.read(columns).width,), known if isinstance(known, int) else len(known)
    if input_shape is None:
        return None, 10
    return whole_numbers("input-shape", re.sub(r"(?<=\d)x(?=\d)", ",", input_shape), "3,32,32"), 10


def _factory(target: str) -> Callable[..., Any]:
    if ":" not in target:
        raise ValueError(f"expected MODULE:CALLABLE, such as mypackage.models:small, got {target!r}")
    return imported(target)


def _made_by(target: str, factory: Any, shape: tuple[int, ...] | None, classes: int) -> Any:
    """What the factory returns, called without arguments or, if it takes two, with (shape of an example, classes)."""
    places = [p for p in inspect.signature(factory).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [p for p in places if p.default is p.empty]
    if shape is not None and len(needed) < 2 <= len(places) and places[0].name == "shape":
        needed = places[:2]
    if len(needed) not in (0, 2):
        raise ValueError(f"{target} has {len(needed)} required arguments; expected none, or (shape, number of classes)")
    if needed and shape is None:
        raise ValueError(f"{target} takes the shape of an example: give it with --input-shape")
    try:
        return factory(shape, classes) if needed else factory()
    except Exception as error:
        raise ValueError(f"{target} is called, but: {raised_by(error)}") from error


def _parts_of(name: str, made: Any, shape: tuple[int, ...] | None, examples: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """The model, its loss of one example (or the sum of outputs) and the arguments of the loss (or random ones)."""
    import torch
    from torch import Tensor, nn

    from noisette.lipschitz.bound import LipschitzBound
    from noisette.run.explain import sum_of_outputs

    model, loss, inputs = made, sum_of_outputs, None
    if isinstance(made, tuple) and len(made) in (2, 3):
        model, loss, inputs = made if len(made) == 3 else (made[0], sum_of_outputs, made[1])
    if not isinstance(model, nn.Module | LipschitzBound):
        raise ValueError(
            f"{name} returned a {type(model).__name__}; expected a torch.nn.Module or a LipschitzBound, (one of them, "
            "inputs), or (one of them, loss, arguments of the loss)"
        )
    if inputs is None and shape is None:
        raise ValueError(f"{name} returned no example inputs: give the shape of one example with --input-shape")
    if inputs is None:
        return model, loss, (torch.randn(examples, *(shape or ())),)
    if isinstance(inputs, Mapping):
        of_examples = {str(key): value for key, value in inputs.items() if isinstance(value, Tensor)}
        constants = {str(key): value for key, value in inputs.items() if not isinstance(value, Tensor)}
        return model, lambda model, named: loss(model, **named, **constants), (of_examples,)
    return model, loss, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
