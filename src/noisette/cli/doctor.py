"""``noisette doctor``: can a model be trained privately, which rules serve it, and what will a step cost?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from noisette.cli.options import (
    CLASSES,
    WRONG_CALL,
    DataDir,
    made_by,
    option,
    plain_errors,
    target_of,
    whole_numbers,
    wrong_inputs,
)
from noisette.errors import PrivacyError

_REFUSED = 1


@plain_errors()
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CALLABLE",
            help="Function that returns a torch.nn.Module or a LipschitzBound, or (one of them, inputs), or (one of "
            "them, loss of one example, arguments of the loss). Inputs and arguments are a tensor, a tuple, or a "
            "dictionary of arguments by name. Called with no arguments, or with (shape of an example, "
            "number of classes) if it takes two.",
        ),
    ],
    data: Annotated[str | None, option("NAME", "Built-in data set that gives the shape of the random inputs.")] = None,
    input_shape: Annotated[str | None, option("N,N,..", "Shape of one example, such as 3,32,32.")] = None,
    columns: Annotated[
        Path | None, option("SCHEMA.toml", "What is declared about the columns of a table, which gives the shape.")
    ] = None,
    examples: Annotated[int, option("N", "Random examples in the microbatch, if the function returns none.")] = 32,
    bf16: Annotated[bool, typer.Option("--bf16", help="Call the model under autocast to bfloat16.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Say whether a model can be trained privately, which rule serves each parameter, and what a step costs.

    A few private and plain steps are taken on random or given examples, without moving the weights. Only the shapes of
    a data set are used. Exit code 0 if the model is accepted, 1 if it is refused, 2 for invalid input.
    """
    if sum(given is not None for given in (data, input_shape, columns)) > 1:
        raise ValueError("--data, --columns and --input-shape each give the shape of an example; give one of them")
    if examples < 1:
        raise ValueError(f"expected --examples of at least 1, got {examples}")
    shape, classes = None, CLASSES
    if data is not None:
        shape, classes = _of_data(data, data_dir)
    elif columns is not None:
        shape, classes = _of_columns(columns)
    elif input_shape is not None:
        shape = whole_numbers("input-shape", input_shape.replace("x", ","), "3,32,32")

    made = made_by(target, shape, classes)  # before torch is imported, which takes seconds

    import torch

    from noisette.run.explain import explain

    found = target_of(target, made, shape, examples)
    try:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            explanation = explain(found.model, found.loss, *found.batch)
    except PrivacyError:
        raise
    except WRONG_CALL as error:
        raise wrong_inputs(target, error) from error
    typer.echo(explanation)
    if explanation.refused:
        raise typer.Exit(_REFUSED)


def _of_columns(path: Path) -> tuple[tuple[int, ...], int]:
    """The same of a schema."""
    from noisette.data.columns import Columns
    from noisette.training.recipe import read_schema

    classes = read_schema(path).get("classes", 1)  # a number to predict is one output
    return (Columns.read(path).width,), classes if isinstance(classes, int) else len(classes)


def _of_data(name: str, data_dir: Path | None) -> tuple[tuple[int, ...], int]:
    """The shape of an example as a model receives it, and the number of classes."""
    from noisette.data import load, names

    if name not in names():
        raise ValueError(f"expected --data as one of {', '.join(names())}, got {name!r}; or give --input-shape")
    found = load(name, data_dir=data_dir)
    words = () if found.vectors is None else found.vectors.shape[1:]  # a model receives the word vectors of a text
    return (*found.train.inputs.shape[1:], *words), found.classes
