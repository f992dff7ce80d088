"""From one vector of losses to the per-example gradients of every parameter: the tape and the rules meet here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisette.errors import MissingRuleError, PrivacyError
from noisette.gradients.autograd_graph import LossGraph, visit_output_gradients
from noisette.gradients.derived_weights import to_parameters
from noisette.gradients.recording import Recording, Use
from noisette.gradients.rule_check import check_custom_rule
from noisette.gradients.rules import Dense, ExampleGradients, Examples, add, compact, operation_name, placed
from noisette.gradients.rules.forms import AT_LEAST_SINGLE
from noisette.gradients.rules.linear import linear_in_brain_floats, linear_weight
from noisette.gradients.rules.registry import Match, OperandMatch, match

Take = Callable[[str, ExampleGradients], None]  # name of a parameter, its gradients


@dataclass(frozen=True)
class LocatedRecording:
    """A forward pass, its losses, and what has been found out about the two."""

    losses: Tensor  # (b,)
    recording: Recording
    graph: LossGraph  # what the losses depend on
    examples: Sequence[Examples | None]  # for each use the batch axis of its output; None where there is none
    repeat: Callable[[], LocatedRecording] | None = None  # the same forward pass anew, where that can be had


@dataclass(frozen=True)
class PerExampleGradients:
    """The gradients of b examples, by name of the parameter.

    ``forms`` is empty where only the norms were asked for.
    """

    forms: dict[str, ExampleGradients]
    squared_norms: dict[str, Tensor]  # each (b,)

    @classmethod
    def dense(cls, gradients: Mapping[str, Tensor]) -> PerExampleGradients:
        """Gradients that are written out, each (b, *parameter.shape)."""
        forms: dict[str, ExampleGradients] = {name: Dense(gradient) for name, gradient in gradients.items()}
        with torch.no_grad():
            return cls(forms, {name: form.squared_norms() for name, form in forms.items()})


class UncoveredError(PrivacyError):
    """Parameters reach the losses otherwise than by operations that were recorded."""


def per_example_gradients(
    forward: LocatedRecording, parameters: Mapping[str, Tensor], *, keep: bool, retain_graph: bool = False
) -> PerExampleGradients:
    """The per-example gradients, from rules, of every parameter that the losses depend on.

    One backward pass computes gradients of activations only; no weight gradient is computed in it. As the gradient at
    each use's output arrives, the rules of the use turn it into per-example gradients, and the use is dropped.

    Args:
        forward: the forward pass. It keeps activations alive: drop your own reference to save memory.
        parameters: the trainable parameters by name.
        keep: whether the gradients are needed, or their squared norms alone.
        retain_graph: whether another backward pass will follow.

    Raises:
        MissingRuleError: an operation has no rule for the parameter it uses; all such uses are listed.
        PrivacyError: the losses depend on a parameter otherwise than through the recorded forward pass.
    """
    forms: dict[str, ExampleGradients] = {}
    squared_norms: dict[str, Tensor] = {}

    def take(name: str, form: ExampleGradients) -> None:
        if keep:
            forms[name] = form = compact(form)
        squared_norms[name] = form.squared_norms()

    held = [forward]
    del forward
    give_each(held.pop(), parameters, take, retain_graph=retain_graph)
    return PerExampleGradients(forms, squared_norms)


def give_each(
    forward: LocatedRecording, parameters: Mapping[str, Tensor], take: Take, *, retain_graph: bool = False
) -> None:
    """Give the per-example gradients of one parameter after another, as they come by in one backward pass.

    Arguments and errors are those of :func:`per_example_gradients`; ``take`` is called with a parameter's name and its
    gradients, which need no memory afterwards unless it keeps them.
    """
    if uncovered := forward.graph.uncovered:
        raise UncoveredError(
            f"{len(uncovered)} parameters reach the losses outside the recorded forward pass: {', '.join(uncovered)}. "
            "Compute the losses from a call of the module itself, with no penalty on its parameters added (weight "
            "decay belongs to the optimizer). Parts in TorchScript are not recorded; "
            "engine=noisette.engines.PerExampleLoop() needs no recording."
        )
    losses, graph = forward.losses, forward.graph
    collector = GradientCollector(forward, parameters, take)
    del forward  # from here on the collector alone holds the uses, and drops each one after its visit
    if collector.uses:
        with user_hooks_disabled(parameters.values()):
            cotangent = torch.ones_like(losses)
            visit_output_gradients(
                losses, cotangent, collector.uses, graph, collector.receive, retain_graph=retain_graph
            )
            collector.finish()


@contextmanager
def user_hooks_disabled(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Within it no gradient hook of the user runs: such hooks see noised gradients only."""
    held = [(hooks, dict(hooks)) for p in parameters if (hooks := p._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in held:
            hooks.update(kept)


class GradientCollector:
    """Collects the gradients of each parameter over its uses, and gives them away when the last one has arrived."""

    def __init__(self, forward: LocatedRecording, parameters: Mapping[str, Tensor], take: Take) -> None:
        recorded = forward.recording.uses
        self.uses: dict[int, Use] = dict(enumerate(recorded))
        self._take = take
        self._derived = forward.recording.derived
        self._examples = forward.examples
        self._names = {id(p): name for name, p in parameters.items()}
        self._problems: list[str] = []
        # Gradients that have not arrived yet. A parameter that other weights are derived from is completed last.
        self._awaited = Counter([id(weight) for use in recorded for weight in use.weights])
        self._uses = self._awaited.copy()
        self._late = {id(p) for weight in self._derived.values() for p in weight.parents} if self._derived else set()
        self._arrived: dict[int, list[tuple[Tensor, ExampleGradients]]] = {}

    @torch.no_grad()
    def receive(self, k: int, dy: Any) -> None:
        """Apply the rules of use ``k`` to the gradient at its output, and complete the parameters that waited for it.

        A parameter with two uses, such as a tied embedding, is completed when the second one has arrived: its gradient
        is the sum of both, and so its norm is known only then.
        """
        use, examples = self.uses.pop(k).whole(), self._examples[k]
        use.check_unchanged()
        found = match(use.operation, use.args, use.kwargs, use.weights)
        for operand in found.operands:
            try:
                forms = _apply_rule(use, examples, dy, found, operand, self._are_only_uses(operand))
                self._add(operand, forms, None if examples is None else examples.order)
            except ValueError as error:
                self._problems += [
                    f"{self._name(weight)}, {operand.name} of {operation_name(use.operation)}: {error}"
                    for weight in operand.weights
                ]
        for weight in use.weights:
            key = id(weight)
            self._awaited[key] -= 1
            if not self._awaited[key] and key in self._names and key not in self._late and key in self._arrived:
                forms = [form for _, form in self._arrived.pop(key)]
                self._take(self._names[key], forms[0] if len(forms) == 1 else add(forms))

    def _are_only_uses(self, operand: OperandMatch) -> bool:
        """Whether each weight is a parameter with this use alone, so that its gradient is the sum of nothing else."""
        keys = [id(weight) for weight in operand.weights]
        return all(key in self._names and key not in self._late and self._uses[key] == 1 for key in keys)

    def _add(self, operand: OperandMatch, forms: Any, order: Tensor | None) -> None:
        """Keep the gradients of an operand, in the order of the losses, until its weights are complete.

        A list operand has one form for each of its tensors.
        """
        several = type(operand.value) in (list, tuple)
        for item, form in zip(operand.value, forms, strict=True) if several else ((operand.value, forms),):
            for weight in operand.weights:
                if item is weight:
                    self._arrived.setdefault(id(item), []).append(
                        (item, form if order is None else placed(form, order.to(item.device)))
                    )

    def finish(self) -> None:
        """Complete what is left: parameters that other weights are derived from, or with uses that no loss reached.

        Raises:
            MissingRuleError: some uses have no rule.
        """
        if problems := list(dict.fromkeys(self._problems)):
            listed = "\n  ".join(problems)
            raise MissingRuleError(
                f"{len(problems)} uses of trainable parameters have no per-example gradient:\n  {listed}\n"
                "Write the operation with ones that `noisette explain` lists, freeze the parameter, register a rule "
                "with noisette.rule, or use an engine that needs none: noisette.engines.MultiLoss(), "
                "noisette.engines.PerExampleLoop() (less memory) or noisette.engines.Vmap() (repeats the call, which "
                "must not be random)."
            )
        if self._arrived:
            left = [pair for arrived in self._arrived.values() for pair in arrived]
            with torch.no_grad():
                for parameter, form in to_parameters(left, self._derived):
                    self._take(self._names[id(parameter)], form)

    def _name(self, weight: Tensor) -> str:
        """The name of a weight in a message."""
        if id(weight) in self._names:
            return self._names[id(weight)]
        parents = self._derived[id(weight)].parents
        return f"a weight derived from {', '.join(self._names[id(p)] for p in parents)}"


def _apply_rule(
    use: Use, examples: Examples | None, dy: Any, found: Match, operand: OperandMatch, is_only_use: bool
) -> Any:
    """The gradients of one operand: a form, or a list of forms for a list operand.

    Raises:
        ValueError: the operand has no rule, or the rule does not apply to this call.
    """
    if operand.rule is None:
        raise ValueError("no rule")
    if examples is None:
        raise ValueError("no axis of its output holds the examples one by one")
    if found.unknown:
        raise ValueError(f"its rule does not know {', '.join(found.unknown)}")
    # An autocast forward pass has left the weights' precision; rules compute in it, or in single precision.
    dtype = AT_LEAST_SINGLE.get(operand.weights[0].dtype, operand.weights[0].dtype)
    if is_only_use and operand.rule is linear_weight and linear_in_brain_floats(examples, dy, found.arguments):
        return operand.rule(examples, dy, **found.arguments)
    dy, arguments = _cast(dy, dtype), {name: _cast(value, dtype) for name, value in found.arguments.items()}
    if operand.third_party:
        check_custom_rule(operand.rule, examples, dy, use, operand.name, found.arguments)
    return operand.rule(examples, dy, **arguments)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value with its floating-point tensors in this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is not dtype and value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value
