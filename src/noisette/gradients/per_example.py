"""From one vector of losses to the per-example gradients of every parameter: the tape and the rules meet here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.errors import MissingRuleError, PrivacyError
from noisette.gradients.autograd_graph import Paths
from noisette.gradients.derived_weights import to_parameters
from noisette.gradients.output_gradients import visit_output_gradients
from noisette.gradients.rule_check import check_custom_rule
from noisette.gradients.rules import (
    ExampleGradients,
    Examples,
    add,
    find_rule,
    named_arguments,
    operands,
    operation_name,
)
from noisette.gradients.tape import Record, Use

Settle = Callable[[str, ExampleGradients], None]  # name of a parameter, all of its per-example gradients


def example_gradients(
    losses: Tensor,
    record: Record,
    parameters: Mapping[str, Tensor],
    settle: Settle,
    *,
    retain_graph: bool = False,
) -> None:
    """Hand each parameter's per-example gradients to ``settle``, once, as soon as they are complete.

    One backward pass computes gradients of activations only; no weight gradient is formed in it.

    Raises:
        MissingRuleError: an operation has no rule for the parameter it uses; all such uses are listed.
        PrivacyError: a parameter reaches the losses outside the recorded forward pass.
    """
    paths: Paths = record.paths
    if paths.uncovered:
        raise PrivacyError(
            f"{len(paths.uncovered)} parameters reach the losses by a way that was not recorded: "
            f"{', '.join(paths.uncovered)}. Compute the losses from a call of the module itself, with no penalty on "
            "its parameters added (weight decay belongs to the optimizer)."
        )
    if not record.uses:
        return
    arrivals = GradientCollector(losses.shape[0], record, parameters, settle)
    visit_output_gradients(losses, torch.ones_like(losses), arrivals.uses, arrivals.visit, retain_graph=retain_graph)
    arrivals.finish()


class GradientCollector:
    """Collects the gradients that reach each parameter, and settles it when the last one has come.

    A use, and the activations it holds, is let go once its gradient has come; the record is left without uses.
    """

    def __init__(self, b: int, record: Record, parameters: Mapping[str, Tensor], settle: Settle) -> None:
        self.uses = dict(enumerate(record.uses))
        self._derived = record.derived
        self._examples = record.examples or [Examples(b)] * len(record.uses)
        self._settle = settle
        self._names = {id(p): name for name, p in parameters.items()}
        self._problems: list[str] = []
        # Uses of a parameter that have not come yet; one that other weights come from is settled last.
        self._awaited = Counter(id(weight) for use in record.uses for weight in use.weights)
        self._late = {id(p) for weight in record.derived.values() for p in weight.parents}
        record.uses.clear()
        self._held: dict[int, list[tuple[Tensor, ExampleGradients]]] = {}

    def visit(self, k: int, dy: Any) -> None:
        use = self.uses.pop(k)
        use.check_unchanged()
        with torch.no_grad():
            for weight, form in self._apply_rules(self._examples[k], dy, use):
                self._held.setdefault(id(weight), []).append((weight, form))
            for weight in use.weights:
                self._awaited[id(weight)] -= 1
                if not self._awaited[id(weight)] and id(weight) in self._names and id(weight) not in self._late:
                    self._settle_now(weight)

    def _settle_now(self, weight: Tensor) -> None:
        if held := self._held.pop(id(weight), []):
            self._settle(self._names[id(weight)], add([form for _, form in held]))

    def finish(self) -> None:
        """Settle what is left: parameters that other weights come from, and those with uses that no loss reached."""
        if problems := list(dict.fromkeys(self._problems)):
            listed = "\n  ".join(problems)
            raise MissingRuleError(
                f"{len(problems)} uses of trainable parameters have no per-example gradient:\n  {listed}\n"
                "Write the operation with ones that `noisette explain` lists, freeze the parameter, register a rule "
                "with noisette.rule, or use an engine that needs none: noisette.engines.MultiLoss(), "
                "noisette.engines.PerExampleLoop() (less memory) or noisette.engines.Vmap() (repeats the call, which must "
                "not be random)."
            )
        left = [pair for held in self._held.values() for pair in held]
        with torch.no_grad():
            for parameter, form in to_parameters(left, self._derived):
                self._settle(self._names[id(parameter)], form)

    def _apply_rules(self, examples: Examples | None, dy: Any, use: Use) -> list[tuple[Tensor, ExampleGradients]]:
        gradients: list[tuple[Tensor, ExampleGradients]] = []
        arguments = named_arguments(use.operation, use.args, use.kwargs)
        for operand, value in arguments.items():
            weights = _weights_in(value, use.weights)
            if not weights:
                continue
            try:
                forms = _apply_rule(examples, dy, use, operand, weights[0].dtype, arguments)
                several = type(value) in (list, tuple)
                pairs = zip(value, forms, strict=True) if several else [(value, forms)]
                gradients += [
                    (item, _in_order(form, examples))
                    for item, form in pairs
                    if any(item is weight for weight in weights)
                ]
            except ValueError as error:
                self._problems += [
                    f"{self._name(weight)}, {operand} of {operation_name(use.operation)}: {error}" for weight in weights
                ]
        return gradients

    def _name(self, weight: Tensor) -> str:
        """What to call a weight in a message."""
        if id(weight) in self._names:
            return self._names[id(weight)]
        parents = self._derived[id(weight)].parents
        return f"a weight derived from {', '.join(self._names[id(p)] for p in parents)}"


def _weights_in(value: Any, weights: tuple[Tensor, ...]) -> list[Tensor]:
    """The weights that an argument is or holds."""
    held = value if type(value) in (list, tuple) else [value]
    return [weight for weight in weights if any(item is weight for item in held)]


def _apply_rule(
    examples: Examples | None, dy: Any, use: Use, operand: str, dtype: torch.dtype, arguments: Mapping[str, Any]
) -> Any:
    rule = find_rule(use.operation, operand)
    if rule is None:
        raise ValueError("no rule")
    if examples is None:
        raise ValueError("no axis of its output holds the examples one by one")
    if unknown := [name for name in arguments if name not in operands(use.operation)]:
        raise ValueError(f"its rule does not know {', '.join(unknown)}")
    dy, arguments = _cast(dy, dtype), {name: _cast(value, dtype) for name, value in arguments.items()}
    check_custom_rule(rule, examples, dy, use, operand, arguments)
    return rule(examples, dy, **arguments)


def _in_order(form: ExampleGradients, examples: Examples | None) -> ExampleGradients:
    """The gradients in the order of the losses, where the model has changed it."""
    return form if examples is None or examples.order is None else form.select(examples.order)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value in the weight's own precision, which an autocast forward pass has left."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is not dtype and value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value
