"""``noisette explain``: what noisette sees in a model, before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from noisette.cli.errors import plain_errors
from noisette.cli.target import CLASSES, given_shape, made_by, model_and_inputs

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
            help="Makes the model: returns a torch.nn.Module, or (module, example inputs), or a LipschitzBound. Called "
            f"with nothing, or with (shape of an example, {CLASSES} classes) if it takes two arguments.",
        ),
    ],
    input_shape: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,..", help="Shape of one example, such as 3,32,32. Needed unless example inputs come back."
        ),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What takes the place of each batch norm, as for noisette train; random inputs stand for public ones.",
            show_default="batch norm stays, and is refused",
        ),
    ] = None,
) -> None:
    """Show each use of each parameter in a model: its rule, its cost, what is refused and why. Or each layer's bound.

    Nothing is trained and no data is read. Exit code 1 if the model is refused.
    """
    from noisette.errors import PrivacyError
    from noisette.lipschitz.bound import LipschitzBound
    from noisette.validation.explain import explain as explain_model

    made = made_by(target, given_shape(input_shape))
    if isinstance(made, LipschitzBound):
        _show_bounds(explain_model(made))
        return
    model, inputs = model_and_inputs(target, made, given_shape(input_shape))
    try:
        if batch_norm is not None:
            _replace_batch_norm(model, batch_norm, inputs)
        explanation = explain_model(model, *inputs)
    except PrivacyError:
        raise
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{target} cannot take its inputs: {error}; give --input-shape, or return (module, inputs)"
        ) from error
    _show(explanation)
    if explanation.problems:
        raise typer.Exit(_REFUSED)


def _replace_batch_norm(model: nn.Module, name: str, inputs: tuple[Any, ...]) -> None:
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
    """The layers in the order of the forward pass; bounds on gradients walked the other way."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in ("input reaches", "gradient at output", "one example adds"):
        table.add_column(heading, justify="right", overflow="fold")
    for line in explanation.bounds:
        added = ", ".join(f"{name} {value:.4g}" for name, value in line.sensitivities.items())
        table.add_row(f"{line.name}  {line.kind}", f"{line.input_norm:.4g}", f"{line.gradient_norm:.4g}", added)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print("\nNorms, for any example at all, under the weights of now. A search for a steeper example is made")
    console.print("before the first step of a run.")


def _show(explanation: Explanation) -> None:
    console = Console(soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("parameter", "used by", "input", "rule"):
        table.add_column(heading, overflow="fold")
    table.add_column("numbers per example", justify="right", overflow="fold")
    for use in explanation.uses:
        table.add_row(
            use.parameter,
            f"{use.operation} ({use.operand})",
            " × ".join(map(str, use.shape)),
            use.rule or "[bold]none[/bold]",
            f"{use.per_example_numbers:,}",
        )
    console.print(table)
    for name in explanation.unused:
        console.print(f"{name}: not used here; counts as zero, and gets its noise", markup=False)
    for remark in explanation.remarks:
        console.print(remark, markup=False)
    if explanation.problems:
        console.print(f"\nRefused, for {len(explanation.problems)} reasons:", style="bold")
        for problem in explanation.problems:
            console.print(f"  {problem}", markup=False)
    else:
        console.print("\nAccepted: every use of a parameter has a rule.", style="bold")
        console.print("Whether examples mix is tested again, by measurement, before the first step of a run.")
