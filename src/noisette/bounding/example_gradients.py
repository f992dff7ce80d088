"""From one vector of losses to the per-example gradients of every parameter: the tape and the rules meet here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.bounding.derivation import onto_parameters
from noisette.errors import MissingRule, PrivacyRefusal
from noisette.rules import ExampleGradients, find_rule, named_arguments, operation_name
from noisette.tape import Record, Use, uncovered_parameters


def example_gradients(
    losses: Tensor, record: Record, parameters: Mapping[str, Tensor], *, retain_graph: bool = False
) -> dict[str, ExampleGradients]:
    """Per-example gradients of each parameter that these losses depend on, from one backward pass.

    The pass computes gradients of activations only; no weight gradient is formed in it.

    Raises:
        MissingRule: an operation has no rule for the parameter it uses; all such uses are listed.
        PrivacyRefusal: a parameter reaches the losses outside the recorded forward pass.
    """
    if stray := uncovered_parameters(losses, record, parameters):
        raise PrivacyRefusal(
            f"{len(stray)} parameters reach the losses by a way that was not recorded: {', '.join(stray)}. "
            "Compute the losses from a call of the module itself, with no penalty on its parameters added "
            "(weight decay belongs to the optimizer)."
        )
    uses = record.uses
    if not uses:
        return {}
    arriving = torch.autograd.grad(
        losses,
        [use.output for use in uses],
        grad_outputs=torch.ones_like(losses),
        allow_unused=True,
        retain_graph=retain_graph,
    )
    reached = [(use, dy) for use, dy in zip(uses, arriving, strict=True) if dy is not None]
    gradients = _apply_rules(losses.shape[0], reached, _names(record, parameters))
    names = {id(p): name for name, p in parameters.items()}
    return {names[id(p)]: form for p, form in onto_parameters(gradients, record.derived)}


def _names(record: Record, parameters: Mapping[str, Tensor]) -> dict[int, str]:
    """What to call each weight in a message."""
    names = {id(p): name for name, p in parameters.items()}
    derived = {
        key: f"a weight derived from {', '.join(names[id(p)] for p in weight.parents)}"
        for key, weight in record.derived.items()
    }
    return derived | names


def _apply_rules(
    b: int, reached: list[tuple[Use, Tensor]], names: Mapping[int, str]
) -> list[tuple[Tensor, ExampleGradients]]:
    gradients: list[tuple[Tensor, ExampleGradients]] = []
    problems: list[str] = []
    with torch.no_grad():
        for use, dy in reached:
            use.check_unchanged()
            arguments = named_arguments(use.operation, use.args, use.kwargs)
            for operand, weight in _operands_of(use, arguments):
                try:
                    gradients.append((weight, _apply_rule(b, dy, use, operand, weight, arguments)))
                except ValueError as error:
                    problems.append(f"{names[id(weight)]}, {operand} of {operation_name(use.operation)}: {error}")
    if problems := list(dict.fromkeys(problems)):
        listed = "\n  ".join(problems)
        raise MissingRule(
            f"{len(problems)} uses of trainable parameters have no per-example gradient:\n  {listed}\n"
            "Write the operation with ones that `noisette explain` lists, freeze the parameter, register a rule with "
            "noisette.rules.rule, or use engine=noisette.Loop(), which needs no rules."
        )
    return gradients


def _operands_of(use: Use, arguments: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """Each place of a weight among the arguments: the argument's name, and the weight that it is or holds."""
    found = []
    for operand, value in arguments.items():
        held = value if type(value) in (list, tuple) else [value]
        found += [(operand, weight) for weight in use.weights if any(item is weight for item in held)]
    return found


def _apply_rule(
    b: int, dy: Tensor, use: Use, operand: str, weight: Tensor, arguments: Mapping[str, Any]
) -> ExampleGradients:
    rule = find_rule(use.operation, operand)
    if rule is None or arguments[operand] is not weight:
        raise ValueError("no rule")
    return rule(b, dy.to(weight.dtype), **_cast(arguments, weight.dtype))


def _cast(arguments: Mapping[str, Any], dtype: torch.dtype) -> Mapping[str, Any]:
    """The arguments in the weight's own precision, which an autocast forward pass has left."""
    other = {
        name: value.to(dtype)
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.dtype is not dtype and value.is_floating_point()
    }
    return {**arguments, **other} if other else arguments
