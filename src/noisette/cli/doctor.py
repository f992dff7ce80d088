"""``noisette doctor``: the preflight on a model, before any run, as a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from noisette.cli.errors import plain_errors
from noisette.cli.options import DataDir, option
from noisette.cli.target import CLASSES, WRONG_CALL, given_shape, made_by, model_and_inputs, wrong_inputs
from noisette.errors import PrivacyError

if TYPE_CHECKING:
    from noisette.core.release import GradientBound
    from noisette.validation import Call

_EXAMPLES = 2
_REFUSED = 1
_VERDICTS = {True: "accepted", False: "refused"}
_RESULTS = {True: "passed", False: "[bold]refused[/bold]", None: "not checked"}
_MAX_GRAD_NORM = 1.0  # arbitrary: the checks scale losses so that half of the gradients exceed it


@plain_errors()
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CALLABLE",
            help="Function that returns a torch.nn.Module, or (module, example inputs), or a gradient bound. The "
            "inputs are a tensor, a tuple, or a dictionary of arguments by name. Called with no arguments, or with "
            "(shape of an example, number of classes) if it takes two.",
        ),
    ],
    data: Annotated[
        str | None,
        option("NAME", "Built-in data set that gives the shape of the random inputs; or give --input-shape."),
    ] = None,
    input_shape: Annotated[
        str | None, option("N,N,..", "Shape of one example, such as 3,32,32, if --data is not given.")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Call the model under autocast to bfloat16.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Check that a model can be trained privately, and list what to change where it cannot.

    The first line is for run.accumulate, which sees each example alone. The others are the checks that a run makes
    before run.backward, on random inputs. Only the shapes of a data set are used. Exit code 0 if one of the two
    accepts the model, 1 if both refuse it, 2 for invalid input.
    """
    import torch

    if data is not None and input_shape is not None:
        raise ValueError("--data and --input-shape both give the shape of an example; give one of them")
    sample, classes = _of_data(data, data_dir) if data else (None, CLASSES)
    shape = tuple(sample.shape[1:]) if sample is not None else given_shape(input_shape)
    bound, call = _bound_and_call(target, made_by(target, shape, classes), shape, sample)
    device = next(iter(bound.parameters.values())).device.type
    with torch.autocast(device, torch.bfloat16) if bf16 else nullcontext():
        batched = _checked(target, bound, call)
        vectorised = _line("run.accumulate: examples are seen alone", lambda: _vectorised(bound, call))
    bound.close()
    _show([vectorised, *batched])
    refused = sum(line.passed is False for line in batched)
    typer.echo(f"\nrun.accumulate: {_VERDICTS[bool(vectorised.passed)]}")
    of_checks = f" ({refused} of {len(batched)} checks failed)" if refused else ", where you assert separability"
    typer.echo(f"run.backward: {_VERDICTS[not refused]}{of_checks}")
    if refused and not vectorised.passed:
        raise typer.Exit(_REFUSED)


def _of_data(name: str, data_dir: Path | None) -> tuple[Any, int]:
    """Zeros in the shape of two examples as a model receives them, and the number of classes."""
    import torch

    from noisette.data import load, names

    if name not in names():
        raise ValueError(f"expected --data as one of {', '.join(names())}, got {name!r}; or give --input-shape")
    found = load(name, data_dir=data_dir)
    shape = found.train.inputs.shape[1:]
    words = () if found.vectors is None else found.vectors.shape[1:]  # a model receives the word vectors of a text
    return torch.zeros(_EXAMPLES, *shape, *words), found.classes


def _bound_and_call(target: str, made: Any, shape: tuple[int, ...] | None, sample: Any) -> tuple[GradientBound, Call]:
    """The bound that the target returned, or per-example clipping of its model, and a call with example inputs."""
    from noisette.clipping.per_example import PerExampleClip
    from noisette.lipschitz.bound import LipschitzBound
    from noisette.validation import Call

    if isinstance(made, PerExampleClip | LipschitzBound):
        if shape is None:
            raise ValueError(f"{target} returned a bound: give the shape of one example with --data or --input-shape")
        return made, model_and_inputs(target, made.model, shape)[1]
    model, call = model_and_inputs(target, made, shape)
    return PerExampleClip(model, _MAX_GRAD_NORM), call if sample is None else Call((sample,), {})


@dataclass(frozen=True)
class _Line:
    check: str
    passed: bool | None  # None if it was not made
    remark: str


def _checked(target: str, bound: GradientBound, given: Call) -> list[_Line]:
    """The result of each check, in order. Those after a refused one are not made.

    Raises:
        ValueError: the model does not accept the inputs.
    """
    from noisette.validation import CHECKS
    from noisette.validation.usable_inputs import with_usable_kinds

    call = given
    try:
        bound.model(*given.args, **given.kwargs)
    except (*WRONG_CALL, ValueError) as error:
        raise wrong_inputs(target, error) from error
    with suppress(PrivacyError):  # the checks themselves say what is wrong
        call = with_usable_kinds(bound.model, call)
    lines = [_line("every trainable parameter is covered", lambda: _coverage(bound, given))]
    for k, check in enumerate(CHECKS):
        if k == 0 or all(line.passed for line in lines):
            lines.append(_line(check.name, lambda check=check: check.run(bound, call) or ""))
        else:
            lines.append(_Line(check.name, None, "made once the refused checks pass"))
    return lines


def _vectorised(bound: GradientBound, call: Call) -> str:
    """How examples are seen alone: nothing to say where the loss of one example can be vectorised.

    Raises:
        PrivacyError: it cannot.
    """
    from noisette.validation import check_vectorized

    return check_vectorized(bound, call)


def _line(name: str, look: Callable[[], str]) -> _Line:
    try:
        return _Line(name, True, look())
    except PrivacyError as refusal:
        return _Line(name, False, str(refusal))


def _coverage(bound: GradientBound, call: Call) -> str:
    """The trained parameters, after checking that each of their uses has a rule or a bound.

    Raises:
        PrivacyError: some use has none; names them all.
    """
    from noisette.lipschitz.bound import LipschitzBound
    from noisette.validation import batch_mixing_modules
    from noisette.validation.explain import explain

    parameters = bound.parameters
    trained = f"{len(parameters)} tensors, {sum(p.numel() for p in parameters.values()):,} parameters"
    trainable = {name for name, p in bound.model.named_parameters() if p.requires_grad}
    if left := sorted(trainable - parameters.keys()):
        raise PrivacyError(
            f"{', '.join(left)} would be trained without a bound; freeze them or include them in the bound"
        )
    if isinstance(bound, LipschitzBound):
        return trained
    explanation = explain(bound.model, *call.args, kwargs=call.kwargs)
    mixing = batch_mixing_modules(bound.model)
    if problems := [problem for problem in explanation.problems if problem not in mixing]:
        raise PrivacyError("\n".join(problems))
    idle = ", ".join(explanation.unused)
    return f"{trained}; not used in this call, but noise is added to them: {idle}" if idle else trained


def _show(lines: list[_Line]) -> None:
    table = Table("check", "result", "remarks", box=None, header_style="bold", pad_edge=False)
    for line in lines:
        table.add_row(line.check, _RESULTS[line.passed], escape(line.remark))
    Console().print(table)
