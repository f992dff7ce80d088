"""``noisette doctor``: can a model be trained privately, which rules serve it, and what will a step cost?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

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

if TYPE_CHECKING:
    from noisette.run.explain import Cost, Explanation

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
    data: Annotated[
        str | None,
        option("NAME", "Built-in data set that gives the shape of the random inputs; or give --input-shape."),
    ] = None,
    input_shape: Annotated[
        str | None, option("N,N,..", "Shape of one example, such as 3,32,32, if --data is not given.")
    ] = None,
    examples: Annotated[int, option("N", "Random examples in the microbatch, if the function returns none.")] = 32,
    bf16: Annotated[bool, typer.Option("--bf16", help="Call the model under autocast to bfloat16.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Say whether a model can be trained privately, which rule serves each parameter, and what a step costs.

    A few private and plain steps are taken on random or given examples, without moving the weights. Only the shapes of
    a data set are used. Exit code 0 if the model is accepted, 1 if it is refused, 2 for invalid input.
    """
    if data is not None and input_shape is not None:
        raise ValueError("--data and --input-shape both give the shape of an example; give one of them")
    if examples < 1:
        raise ValueError(f"expected --examples of at least 1, got {examples}")
    shape, classes = None, CLASSES
    if data is not None:
        shape, classes = _of_data(data, data_dir)
    elif input_shape is not None:
        shape = whole_numbers("input-shape", input_shape.replace("x", ","), "3,32,32")

    import torch

    from noisette.run.explain import explain

    found = target_of(target, made_by(target, shape, classes), shape, examples)
    try:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            explanation = explain(found.model, found.loss, *found.batch)
    except PrivacyError:
        raise
    except WRONG_CALL as error:
        raise wrong_inputs(target, error) from error
    _show(explanation)
    if explanation.refused:
        raise typer.Exit(_REFUSED)


def _of_data(name: str, data_dir: Path | None) -> tuple[tuple[int, ...], int]:
    """The shape of an example as a model receives it, and the number of classes."""
    from noisette.data import load, names

    if name not in names():
        raise ValueError(f"expected --data as one of {', '.join(names())}, got {name!r}; or give --input-shape")
    found = load(name, data_dir=data_dir)
    words = () if found.vectors is None else found.vectors.shape[1:]  # a model receives the word vectors of a text
    return (*found.train.inputs.shape[1:], *words), found.classes


def _show(found: Explanation) -> None:
    """Print the rules or bounds, what is to be known, the cost, and the verdict."""
    console = Console(soft_wrap=True, highlight=False)
    if found.uses:
        console.print(_rules(found))
    if found.bounds:
        console.print(_bounds(found))
    if found.unreached:
        console.print(
            f"\nNoise alone: the loss of none of these examples depends on {', '.join(found.unreached)}; freeze what "
            "no loss uses (requires_grad=False)",
            markup=False,
        )
    for remark in found.remarks:
        console.print(f"\n{remark}", markup=False)
    if found.one_by_one:
        console.print(f"\nOne example at a time: {found.one_by_one}", markup=False)
        if found.line:
            console.print(f"  {found.line}", markup=False)
    if found.cost is not None:
        console.print(f"\n{_cost(found.cost)}", markup=False)
    if found.refused:
        console.print("Refused:", style="bold")
        for problem in found.refused:
            console.print(f"  {problem}", markup=False)
    else:
        how = "its loss is computed one example at a time" if found.one_by_one else "its loss vectorises"
        console.print(f"Accepted: {how}.", style="bold")


def _rules(found: Explanation) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("parameter", "used by", "input", "rule"):
        table.add_column(heading, overflow="fold")
    table.add_column("elements per example", justify="right", overflow="fold")
    for use in found.uses:
        shape = " × ".join(map(str, use.shape))
        used_by = f"{use.operation} ({use.operand})"
        table.add_row(use.parameter, used_by, shape, use.rule, f"{use.per_example_numbers:,}")
    return table


def _bounds(found: Explanation) -> Table:
    """The layers in the order of the forward pass, each with its bounds for every possible example."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in ("input norm", "gradient at output", "sensitivity"):
        table.add_column(heading, justify="right", overflow="fold")
    for line in found.bounds:
        sensitivities = ", ".join(f"{name} {value:.4g}" for name, value in line.sensitivities.items())
        table.add_row(f"{line.name}  {line.kind}", f"{line.input_norm:.4g}", f"{line.gradient_norm:.4g}", sensitivities)
    return table


def _cost(cost: Cost) -> str:
    private = f"{1e3 * cost.private_seconds:.3g} ms and {cost.private_bytes / 2**20:.3g} MiB"
    head = f"A private step of these {cost.examples} examples takes {private}, with clipping, noise and ledger"
    if cost.plain_seconds is None or cost.plain_bytes is None:
        plain = "a plain one was not measured, because the loss cannot be called with several examples at once"
    else:
        times = f"{cost.private_seconds / cost.plain_seconds:.2g} times"
        plain = f"a plain one {1e3 * cost.plain_seconds:.3g} ms and {cost.plain_bytes / 2**20:.3g} MiB ({times})"
    return f"{head}; {plain}. It ran as {cost.graph}; nothing was compiled, which long runs do."
