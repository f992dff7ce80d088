"""The table of rules: (operation, operand) -> how to form the per-example gradients of that operand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from noisette.rules.gradients import ExampleGradients

Operation = Callable[..., Any]
Rule = Callable[..., ExampleGradients]

_RULES: dict[tuple[Operation, str], Rule] = {}
_OPERANDS: dict[Operation, tuple[str, ...]] = {}


def rule(*operations: Operation, operand: str) -> Callable[[Rule], Rule]:
    """Register the rule of one operand of these operations.

    A rule is called as ``rule(b, dy, ...)`` with the number of examples, the gradient that arrives at the operation's
    output, and then the operation's own arguments under its own names; it returns the gradients of ``operand``.

    Raises:
        ValueError: the operand has a rule already, or the rule does not take it.
    """

    def register(function: Rule) -> Rule:
        names = tuple(inspect.signature(function).parameters)[2:]
        if operand not in names:
            raise ValueError(f"rule {function.__name__} takes {', '.join(names)}; it has no operand {operand!r}")
        for operation in operations:
            if (operation, operand) in _RULES:
                raise ValueError(f"{operation_name(operation)} has a rule for its operand {operand!r} already")
            if _OPERANDS.setdefault(operation, names) != names:
                raise ValueError(f"rules of {operation_name(operation)} disagree about its operands")
            _RULES[operation, operand] = function
        return function

    return register


def operands(operation: Operation) -> tuple[str, ...]:
    """Names of the operation's arguments in order; empty for an operation without rules."""
    return _OPERANDS.get(operation, ())


def find_rule(operation: Operation, operand: str) -> Rule | None:
    """The rule of this operand, or ``None``."""
    return _RULES.get((operation, operand))


def named_arguments(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments under the operand names of its rules (numbered where the operation has none)."""
    names = _OPERANDS.get(operation, ())
    named = {names[k] if k < len(names) else f"argument {k}": value for k, value in enumerate(args)}
    return named | dict(kwargs)


def operation_name(operation: Operation) -> str:
    """A name a reader recognises: ``linear``, ``Tensor.add``."""
    qualified = getattr(operation, "__qualname__", None) or getattr(operation, "__name__", repr(operation))
    return (
        qualified.replace("_VariableFunctionsClass.", "")
        .replace("_TensorBase", "Tensor")
        .replace("TensorBase", "Tensor")
    )


def examples_first(b: int, tensor: Tensor) -> Tensor:
    """The tensor with axes (example, position, ...), whether or not the model folded positions into the first axis.

    Raises:
        ValueError: the first axis does not hold the examples.
    """
    if b == 0 or tensor.dim() == 0 or tensor.shape[0] % b:
        raise ValueError(f"the first axis of shape {tuple(tensor.shape)} does not hold the {b} examples of the batch")
    return tensor.reshape(b, tensor.shape[0] // b, *tensor.shape[1:])
