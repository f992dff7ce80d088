"""A report on a model: uses of its parameters with their rules, or layers with their bounds, and problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from noisette.core.backward import search
from noisette.core.registry import find_rule, named_arguments, operation_name, rewrites
from noisette.core.trace import Tape
from noisette.core.trees import tensors
from noisette.lipschitz.bound import LayerBound, LipschitzBound
from noisette.validation import batch_mixing_modules


@dataclass(frozen=True)
class UseLine:
    """One use of one parameter."""

    parameter: str
    operation: str
    operand: str
    shape: tuple[int, ...]  # of the operation's first tensor argument
    rule: str  # name of the rule; empty if there is none
    per_example_numbers: int  # number of elements of one example's gradient
    problem: str  # why the use is refused; empty if it is not


@dataclass(frozen=True)
class Explanation:
    """All uses of parameters, all reasons to refuse the model, and the remarks of its modules.

    For a Lipschitz bound it has the bounds of each layer instead of uses.
    """

    uses: tuple[UseLine, ...]
    unused: tuple[str, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    bounds: tuple[LayerBound, ...] = ()


def explain(model: nn.Module | LipschitzBound, *inputs: Any, kwargs: Mapping[str, Any] | None = None) -> Explanation:
    """The uses of the model's trainable parameters in a forward pass on these inputs, with the rule of each.

    ``kwargs`` are inputs by name. A Lipschitz bound needs no inputs, because the bounds of its layers hold for all
    inputs.

    >>> report = explain(nn.Linear(3, 2), torch.zeros(4, 3))
    >>> [(use.parameter, use.rule) for use in report.uses]
    [('weight', 'linear_weight'), ('bias', 'linear_bias')]
    """
    if isinstance(model, LipschitzBound):
        mixing = tuple(batch_mixing_modules(model.model))
        return Explanation((), (), mixing, tuple(_remarks(model.model)), tuple(model.layers()))
    tape = Tape(model, rewrites())
    try:
        with torch.enable_grad():
            output = model(*inputs, **(kwargs or {}))
        recording = tape.recording
        names = {id(p): name for name, p in tape.parameters.items()}
        names |= {
            key: " + ".join(names[id(p)] for p in weight.parents) + f" ({operation_name(weight.operation)})"
            for key, weight in recording.derived.items()
        }
        lines = [
            _line(names[id(weight)], weight, use.operation, named_arguments(use.operation, use.args, use.kwargs))
            for use in recording.uses
            for weight in use.weights
        ]
        used = {id(p) for use in recording.uses for w in use.weights for p in _roots(w, recording.derived)}
        unused = tuple(name for name, p in tape.parameters.items() if id(p) not in used)
        unrecorded = _unrecorded(output, tape)
    finally:
        tape.close()
    problems = [
        *batch_mixing_modules(model),
        *dict.fromkeys(f"{u.parameter}: {u.problem}" for u in lines if u.problem),
        *unrecorded,
    ]
    return Explanation(tuple(lines), unused, tuple(problems), tuple(_remarks(model)))


def _remarks(model: nn.Module) -> Iterator[str]:
    """The text that modules give in an attribute ``remark``, with name and class."""
    for name, module in model.named_modules():
        remark = getattr(module, "remark", "")
        if isinstance(remark, str) and remark:
            yield f"{name or 'the model itself'}  {type(module).__name__} {remark}"


def _roots(weight: Tensor, derived: Any) -> tuple[Tensor, ...]:
    """The parameters from which a weight is derived; the weight itself if it is a parameter."""
    known = derived.get(id(weight))
    return known.parents if known else (weight,)


def _line(name: str, weight: Tensor, operation: Callable[..., Any], arguments: dict[str, Any]) -> UseLine:
    """The use of one weight, called ``name``, by one operation, whose arguments are given by name."""
    holding = (key for key, value in arguments.items() if any(leaf is weight for leaf in tree_flatten(value)[0]))
    operand = next(holding, "an argument")
    rule = find_rule(operation, operand)
    first = next((value for value in arguments.values() if isinstance(value, Tensor) and value is not weight), weight)
    label = operation_name(operation)
    problem = f"{label} has no rule for its operand {operand!r}; engine=noisette.engines.PerExampleLoop() needs none"
    return UseLine(
        parameter=name,
        operation=label,
        operand=operand,
        shape=tuple(first.shape),
        rule=getattr(rule, "__name__", "") if rule else "",
        per_example_numbers=weight.numel(),
        problem="" if rule else problem,
    )


def _unrecorded(output: Any, tape: Tape) -> list[str]:
    """Problems of parameters that reach the output without a recorded use, or of an output without parameters."""
    leaves = [leaf for leaf in tensors(output) if leaf.requires_grad]
    if not leaves:
        return ["the output depends on no trainable parameter"]
    total = torch.stack([leaf.sum() for leaf in leaves]).sum()
    return [
        f"{name}: reaches the output through an operation that was not recorded, such as a custom autograd function"
        for name in search(total, tape.recording.uses, tape.parameters).uncovered
    ]
