"""``noisette explain``: the rule for each use of each parameter, or the bounds of each layer, before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette.cli.errors import plain_errors
from noisette.cli.options import option
from noisette.cli.target import CLASSES, WRONG_CALL, given_shape, made_by, model_and_inputs, wrong_inputs
from noisette.errors import PrivacyError

if TYPE_CHECKING:
    from torch import nn

    from noisette.validation.explain import Explanation

_PUBLIC = 8
_REFUSED = 1


@plain_errors()
def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CALLABLE",
            help="Function that returns a torch.nn.Module, or (module, example inputs), or a LipschitzBound. The "
            "inputs are a tensor, a tuple, or a dictionary of arguments by name. Called "
            f"with no arguments, or with (shape of an example, {CLASSES} classes) if it takes two.",
        ),
    ],
    input_shape: Annotated[
        str | None,
        option("N,N,..", "Shape of one example, such as 3,32,32. Required unless the function returns inputs."),
    ] = None,
    batch_norm: Annotated[
        str | None,
        option(
            "NAME",
            "Replace each batch norm, as in noisette train, with random inputs as public examples.",
            "batch norm is kept, and refused",
        ),
    ] = None,
) -> None:
    """Show the rule and the size of each use of each parameter in a model, or the bounds of each layer.

    A use without a rule is refused, with the reason. Nothing is trained and no data is read. Exit code 1 if the model
    is refused.
    """
    from noisette.lipschitz.bound import LipschitzBound
    from noisette.validation.capturing import capture_remark
    from noisette.validation.explain import explain as explain_model

    made = made_by(target, given_shape(input_shape))
    if isinstance(made, LipschitzBound):
        _show_bounds(explain_model(made))
        return
    model, call = model_and_inputs(target, made, given_shape(input_shape))
    try:
        if batch_norm is not None:
            _replace_batch_norm(model, batch_norm, call.args)
        explanation = explain_model(model, *call.args, kwargs=call.kwargs)
    except PrivacyError:
        raise
    except WRONG_CALL as error:
        raise wrong_inputs(target, error) from error
    _show(explanation, "" if explanation.problems else capture_remark(model, call.args, call.kwargs))
    if explanation.problems:
        raise typer.Exit(_REFUSED)


def _replace_batch_norm(model: nn.Module, name: str, inputs: tuple[Any, ...]) -> None:
    """Replace batch norm in the model, with public examples in the shape of the inputs.

    Raises:
        ValueError: there is no norm of this name, or no batch norm in the model.
    """
    import torch

    from noisette.training.build import replace_batch_norm
    from noisette.training.recipe import BATCH_NORMS, NEED_PUBLIC

    if name not in BATCH_NORMS:
        raise ValueError(f"expected --batch-norm to be one of {', '.join(BATCH_NORMS)}, got {name!r}")
    public = [
        torch.randn(_PUBLIC, *x.shape[1:]) if x.is_floating_point() else x[:1].expand(_PUBLIC, *x.shape[1:])
        for x in inputs
    ]
    replace_batch_norm(model, name, public if name in NEED_PUBLIC else None)


def _show_bounds(explanation: Explanation) -> None:
    """Print the layers in the order of the forward pass, each with its bounds."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in ("input norm", "gradient at output", "sensitivity"):
        table.add_column(heading, justify="right", overflow="fold")
    for line in explanation.bounds:
        sensitivities = ", ".join(f"{name} {value:.4g}" for name, value in line.sensitivities.items())
        table.add_row(f"{line.name}  {line.kind}", f"{line.input_norm:.4g}", f"{line.gradient_norm:.4g}", sensitivities)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(
        "\nUpper bounds on norms, for every possible example, at the current weights. Before the first step of a run"
    )
    console.print("a search tries to find an example that exceeds them.")


def _show(explanation: Explanation, remark: str) -> None:
    """Print a line for each use of a parameter, remarks, whether the model is accepted, and whether it is captured."""
    console = Console(soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("parameter", "used by", "input", "rule"):
        table.add_column(heading, overflow="fold")
    table.add_column("elements per example", justify="right", overflow="fold")
    for use in explanation.uses:
        table.add_row(
            use.parameter,
            f"{use.operation} ({use.operand})",
            " × ".join(map(str, use.shape)),
            use.rule or "[bold]none[/bold]",
            f"{use.per_example_numbers:,}",
        )
    console.print(table)
    idle = [
        f"{name}: not used in this call; its gradient is zero, and noise is added to it" for name in explanation.unused
    ]
    for line in [*idle, *explanation.remarks]:
        console.print(line, markup=False)
    if explanation.problems:
        console.print(f"\nRefused, for {len(explanation.problems)} reasons:", style="bold")
        for problem in explanation.problems:
            console.print(f"  {problem}", markup=False)
    else:
        console.print("\nAccepted: every use of a parameter has a rule.", style="bold")
        console.print(remark, markup=False)
