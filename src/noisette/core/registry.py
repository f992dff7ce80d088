"""The table of rules: (operation, operand) -> how to form the per-example gradients of that operand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples
from noisette.core.recording import DerivedWeight, Operation

Rule = Callable[..., Any]  # -> ExampleGradients, or a list of them for an operand that is a list
Rewrite = Callable[..., Any]

_RULES: dict[tuple[Operation, str], Rule] = {}
_OPERANDS: dict[Operation, tuple[str, ...]] = {}
_REWRITES: dict[Operation, Rewrite] = {}
# Rules that take what the pass computed in half precision as it is, and for which ``dy`` and arguments.
AS_COMPUTED: dict[Rule, Callable[[Any, Mapping[str, Any]], bool]] = {}

Run = Callable[..., Any]  # (operation, args, kwargs): runs and records an operation on physical tensors
Leave = Callable[[Run, int, Operation, tuple[Any, ...], Mapping[str, Any]], Any]  # -> physical output
PHYSICAL: dict[Operation, Leave] = {}
# By operation the operands, as positions and names, that are data to it: each example needs a copy of a weight there.
DATA_OPERANDS: dict[Operation, frozenset[int | str]] = {}

# From the gradients of a derived weight to those of the tensors it was computed from; ``None`` where autograd does it.
Derivation = Callable[[DerivedWeight, ExampleGradients], list[tuple[Tensor, ExampleGradients]] | None]
DERIVATIONS: dict[Operation, Derivation] = {}


def leaves(*operations: Operation, data: Sequence[int | str] = ()) -> Callable[[Leave], Leave]:
    """Register how these operations leave ``vmap``, and which of their operands are data to them."""

    def register(function: Leave) -> Leave:
        PHYSICAL.update(dict.fromkeys(operations, function))
        DATA_OPERANDS.update(dict.fromkeys(operations, frozenset(data)))
        return function

    return register


def derivation(*operations: Operation) -> Callable[[Derivation], Derivation]:
    """Register how the gradients of a weight that these operations derive become those of its operands."""

    def register(function: Derivation) -> Derivation:
        DERIVATIONS.update(dict.fromkeys(operations, function))
        return function

    return register


def rule(*operations: Operation, operand: str = "weight") -> Callable[[Rule], Rule]:
    """Register the rule of one operand of these operations.

    A rule is called as ``rule(examples, dy, ...)``: how many examples there are, the gradient that arrives at the
    operation's output, and then the operation's own arguments under its own names. ``dy`` and all data among the
    arguments have the examples on their first axis. It returns the per-example gradients of ``operand``, as a list in
    the same order where the operand is a list of tensors. Where the operation returns several tensors, ``dy`` is a
    tuple with ``None`` for those no loss depends on.

    Raises:
        ValueError: the operand has a rule already, or the rule does not take it.
    """

    def register(function: Rule) -> Rule:
        _register(operations, operand, function, tuple(inspect.signature(function).parameters)[2:])
        return function

    return register


def rule_per_operand(
    *operations: Operation, operands: Sequence[str], names: Sequence[str] | None = None
) -> Callable[[Rule], Rule]:
    """Register one function as the rule of each of these operands, where they share arguments and most of the work.

    The function is called as ``function(operand, examples, dy, ...)``, with the name of the operand whose gradients are
    wanted first, and is a rule as of :func:`noisette.rule` otherwise. The rule of an operand is named
    ``FUNCTION_OPERAND``, such as ``layer_norm_bias``.

    Args:
        operations: those that the function is for.
        operands: those that get a rule.
        names: of all arguments of the operations, if the function takes them as one mapping of those that were given.

    Raises:
        ValueError: an operand has a rule already, or the function does not take it.
    """

    def register(function: Rule) -> Rule:
        takes = function if names is None else _with_mapping(function, names)
        taken = tuple(inspect.signature(function).parameters)[3:] if names is None else tuple(names)
        for operand in operands:
            bound = partial(takes, operand)
            name = f"{function.__name__}_{operand}"
            vars(bound).update(__name__=name, __module__=function.__module__, __doc__=function.__doc__)
            _register(operations, operand, bound, taken)
        return function

    return register


def _with_mapping(function: Rule, names: Sequence[str]) -> Rule:
    """The function, which takes the arguments with these names as one mapping, with separate arguments."""

    def called(operand: str, examples: Examples, dy: Any, *args: Any, **kwargs: Any) -> Any:
        return function(operand, examples, dy, dict(zip(names, args, strict=False)) | kwargs)

    return called


def _register(operations: Sequence[Operation], operand: str, function: Rule, names: tuple[str, ...]) -> None:
    """Enter the rule of one operand of operations whose arguments have these names."""
    if operand not in names:
        raise ValueError(f"rule {function.__name__} takes {', '.join(names)}; it has no operand {operand!r}")
    for operation in operations:
        if (operation, operand) in _RULES:
            raise ValueError(f"{operation_name(operation)} has a rule for its operand {operand!r} already")
        if _OPERANDS.setdefault(operation, names) != names:
            raise ValueError(f"rules of {operation_name(operation)} disagree about its operands")
        _RULES[operation, operand] = function


def rewrite(*operations: Operation) -> Callable[[Rewrite], Rewrite]:
    """Register a function that computes what these operations compute, out of operations that have rules.

    It is called with the operation's own arguments, in a recorded forward pass, whenever one of them is a trainable
    weight. It returns ``NotImplemented`` where the operation should run as it is.

    Raises:
        ValueError: an operation is rewritten already.
    """

    def register(function: Rewrite) -> Rewrite:
        for operation in operations:
            if operation in _REWRITES:
                raise ValueError(f"{operation_name(operation)} is rewritten already")
            _REWRITES[operation] = function
        return function

    return register


def rewrites() -> Mapping[Operation, Rewrite]:
    """Every operation that is replaced while it is recorded, with its replacement."""
    return MappingProxyType(_REWRITES)


@dataclass(frozen=True)
class OperandMatch:
    """An operand of a use that holds trainable weights, and its rule."""

    name: str
    value: Any  # the argument: a weight, or a list or tuple with weights in it
    weights: tuple[Tensor, ...]
    rule: Rule | None


@dataclass(frozen=True)
class Match:
    """A use as the rules see it."""

    arguments: dict[str, Any]  # by operand name, or "argument k" where no rule names it
    unknown: tuple[str, ...]  # arguments that no rule of the operation names
    operands: tuple[OperandMatch, ...]


def match(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Sequence[Tensor]) -> Match:
    """Name the arguments of a call and find the rule of each operand that is, or holds, one of these weights.

    ``linear(x, W, b)`` with the weights W and b has the arguments input, weight and bias and two operands: weight with
    the rule ``linear_weight`` and bias with the rule ``linear_bias``.
    """
    arguments = named_arguments(operation, args, kwargs)
    names = _OPERANDS.get(operation, ())
    found = []
    for name, value in arguments.items():
        parts = value if type(value) in (list, tuple) else (value,)
        held = [weight for weight in weights if any(part is weight for part in parts)]
        if held:
            found.append(OperandMatch(name, value, tuple(held), _RULES.get((operation, name))))
    return Match(arguments, tuple([name for name in arguments if name not in names]), tuple(found))


def find_rule(operation: Operation, operand: str) -> Rule | None:
    """The rule of this operand, or ``None``."""
    return _RULES.get((operation, operand))


def named_arguments(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by the operand names of its rules, or numbered where the operation has none."""
    names = _OPERANDS.get(operation, ())
    if "axis" in kwargs and "dim" in names:  # NumPy's name of it
        kwargs = {"dim" if name == "axis" else name: value for name, value in kwargs.items()}
    named = {names[k] if k < len(names) else f"argument {k}": value for k, value in enumerate(args)}
    return named | dict(kwargs)


def operation_name(operation: Operation) -> str:
    """The name that users know: ``linear``, ``Tensor.add``."""
    qualified = getattr(operation, "__qualname__", None) or getattr(operation, "__name__", repr(operation))
    return (
        qualified.replace("_VariableFunctionsClass.", "")
        .replace("_TensorBase", "Tensor")
        .replace("TensorBase", "Tensor")
    )
