"""From the loss of one example to the per-example gradients of every parameter.

The loss was computed for all examples at once and recorded (``trace.record_losses``); one backward pass follows. The
way of a gradient: it arrives at the output of a use as ``dy`` (:func:`visit_output_gradients`); the rule of the use's
operand makes of it the gradients of that weight, in some form (:func:`_form_of`); the forms of all uses of a parameter,
and of weights derived from it, are added up (:class:`_Forms`); and what the caller wants of them is computed while they
are there (:func:`per_example_gradients`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from noisette.core import forms
from noisette.core.forms import AT_LEAST_SINGLE, ExampleGradients, Examples, Match, OperandMatch, Use, add
from noisette.core.trace import ForwardPass
from noisette.core.vmap import NotVectorizedError
from noisette.errors import MissingRuleError, PrivacyError, first_few

Value = TypeVar("Value")


class UncoveredError(PrivacyError):
    """Parameters reach the losses otherwise than by operations that were recorded."""


@dataclass(frozen=True)
class LossGraph:
    """What the losses depend on."""

    uncovered: tuple[str, ...]  # names of trainable parameters that the losses reach otherwise than through a use
    above: frozenset[Node]  # output nodes of uses from which the graph leads to that of another use


def search(losses: Tensor, uses: Sequence[Use], parameters: Mapping[str, Tensor]) -> LossGraph:
    """Walk the autograd graph from the losses to its leaves, each node once.

    Which uses lie above others is a question about gradients, so it follows the edges of the graph. Whether a parameter
    is covered is a question about the tape: at the output of a use the search for uncovered parameters continues at
    the use's data arguments, so that it meets a parameter only where the losses depend on it otherwise.

    For ``relu(x @ A) @ B`` the use ``@ B`` is above ``@ A``; where ``A.square().sum()`` is added, A is uncovered.
    """
    upstream: dict[Node, list[Node]] = {}
    for use in uses:
        for edge in use.edges:
            upstream.setdefault(edge.node, []).extend(use.upstream)
    above: set[Node] = set()
    children: dict[Node, list[Node]] = {}  # of the nodes met so far
    leads: dict[Node, bool] = {}  # whether a use's node lies at or below a node; in the order in which nodes are done
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node not in children:
            below = children[node] = []
            for child, _ in node.next_functions:
                if child is not None:
                    below.append(child)
                    if child not in children:
                        stack.append(child)
            continue
        stack.pop()
        if node in leads:
            continue
        leads_on = False
        for child in children[node]:
            leads_on |= leads[child]
        leads[node] = leads_on or node in upstream
        if leads_on and node in upstream:
            above.add(node)
    names = {id(p): name for name, p in parameters.items()}
    uncovered: set[str] = set()
    exposed = {losses.grad_fn}  # nodes on a path that no use accounts for, or at the output or a data argument of a use
    for node in reversed(leads):  # each node before its children
        if node in exposed:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in names:
                uncovered.add(names[id(variable)])
            exposed.update(upstream[node] if node in upstream else children[node])
    return LossGraph(tuple(sorted(uncovered)), frozenset(above))


def per_example_gradients(
    forward: ForwardPass,
    parameters: Mapping[str, Tensor],
    values_of: Callable[[dict[str, ExampleGradients]], dict[str, Value]],
    *,
    retain_graph: bool = False,
) -> dict[str, Value]:
    """What ``values_of`` computes from the gradients of the b examples of each parameter, by name.

    One backward pass computes gradients of activations alone, no weight gradient. As the gradient at a use's output
    arrives, the rules of the use turn it into per-example gradients. When those of all uses of a parameter are there,
    ``values_of`` is called; then they are dropped, so that of two layers none are in memory at the same time unless
    ``values_of`` returns them. Unless the graph is retained for another pass, the uses are taken out of the recording,
    so that activations are freed as the pass goes. A ``MissingRuleError`` lists all uses without a rule for their
    parameter; an ``UncoveredError`` says that losses depend on one otherwise than through the recorded forward pass.
    """
    graph = search(forward.losses, forward.recording.uses, parameters)
    if graph.uncovered:
        raise UncoveredError(
            f"{first_few(graph.uncovered)}: parameters that reach the losses outside the recorded forward pass; give a "
            "module in TorchScript as it was before torch.jit.script, leave a penalty on weights to the optimizer "
            "(weight_decay), and compute all else by operations of torch on the model that the loss is given"
        )
    uses = dict(enumerate(forward.recording.uses))
    if not retain_graph:
        forward.recording.uses.clear()
    waiting = _Forms(uses.values(), forward.recording.derived, parameters)
    examples, values = Examples(len(forward.losses)), dict[str, Value]()

    @torch.no_grad()
    def visit(k: int, dy: Any) -> None:
        use = uses.pop(k)
        completed = waiting.completed_by(use.whole() if use.is_recomputed else use, examples, dy)
        if completed:
            values.update(values_of(completed))

    if uses:
        with gradients_apart(parameters.values()) as written:
            visit_output_gradients(forward.losses, uses, graph, visit, retain_graph=retain_graph)
            with torch.no_grad():
                if completed := waiting.completed_last():
                    values.update(values_of(completed))
        if written:
            raise NotVectorizedError("The model calls backward() within its own backward pass.")
    return values


@contextmanager
def gradients_apart(parameters: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Within it no hook of the user on a parameter runs, since such hooks see noised gradients only.

    Some models call ``backward()`` in their own backward pass, as reversible layers do, and so write into ``.grad``.
    Gives what was written, by ``id`` of the parameter, at the end, when ``.grad`` is what it was before.
    """
    before, written = [(p, p.grad) for p in parameters], dict[int, Tensor]()
    of_each = [(p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None)) for p, _ in before]
    held = [(hooks, dict(hooks)) for both in of_each for hooks in both if hooks]
    for p, _ in before:
        p.grad = None
    for hooks, _ in held:
        hooks.clear()
    try:
        yield written
    finally:
        for hooks, kept in held:
            hooks.update(kept)
        for p, gradient in before:
            if p.grad is not None:
                written[id(p)] = p.grad
            p.grad = gradient


def visit_output_gradients(
    losses: Tensor, uses: Mapping[int, Use], graph: LossGraph, visit: Callable[[int, Any], None], *, retain_graph: bool
) -> None:
    """Call ``visit`` for each use that the losses depend on, as soon as its output's gradient is complete.

    The pass ends at the lowest uses, those with no other use below them, and returns their gradients. It goes through
    all others on its way, where a hook on their output node calls ``visit``: of autograd, that is the only way to see a
    gradient before the pass has ended, and to drop it before that of the next layer.
    """

    def visit_on_arrival(k: int, output: int, gradients: Sequence[Tensor | None]) -> None:
        if (dy := gradients[output]) is not None:
            visit(k, dy)

    targets: list[tuple[int, int | None, GradientEdge]] = []  # number of the use, output if it has several, edge
    joint: dict[int, list[Tensor | None]] = {}
    handles: list[Any] = []
    for k, use in uses.items():
        if use.several:
            joint[k] = [None] * len(use.outputs)
            targets += [(k, output, edge) for output, edge in enumerate(use.outputs) if edge is not None]
        elif (edge := use.edges[0]).node in graph.above:
            handles.append(edge.node.register_prehook(partial(visit_on_arrival, k, edge.output_nr)))
        else:
            targets.append((k, None, edge))
    try:
        ends = [edge for _, _, edge in targets]
        arriving = torch.autograd.grad(losses, ends, torch.ones_like(losses), retain_graph, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    for (k, output, _), dy in zip(targets, arriving, strict=True):
        if output is not None:
            joint[k][output] = dy
        elif dy is not None:
            visit(k, dy)
    for k, gradients in joint.items():
        if any(dy is not None for dy in gradients):
            visit(k, tuple(gradients))


class _Forms:
    """The gradients of each weight over its uses, until those of all uses have arrived."""

    def __init__(
        self, uses: Iterable[Use], derived: Mapping[int, forms.DerivedWeight], parameters: Mapping[str, Tensor]
    ) -> None:
        self._derived = derived
        self._names = {id(p): name for name, p in parameters.items()}
        self._uses = Counter([id(weight) for use in uses for weight in use.weights])
        self._awaited = self._uses.copy()  # gradients that have not arrived yet
        self._arrived: dict[int, list[tuple[Tensor, ExampleGradients]]] = {}  # by ``id`` of the weight
        # Parameters that other weights are derived from are completed last.
        self._late = {id(p) for weight in derived.values() for p in weight.parents}
        self._problems: list[str] = []

    def completed_by(self, use: Use, examples: Examples, dy: Any) -> dict[str, ExampleGradients]:
        """Apply the rules of a use to the gradient at its output; gives the parameters that waited for this use alone.

        A parameter with two uses, such as a tied embedding, is complete when the second one has arrived: its gradient
        is the sum of both, and so its norm is known only then.
        """
        for tensor, version in use.versions:
            if tensor._version != version:
                raise RuntimeError(
                    f"an input of shape {tuple(tensor.shape)} of {use.operation.__name__} was changed in place after "
                    "its use, so its gradient is lost; use the out-of-place form of the operation that follows"
                )
        found = forms.match(use.operation, use.args, use.kwargs, use.weights)
        for operand in found.operands:
            try:
                form = _form_of(operand, found, examples, dy, is_only_use=self._are_only_uses(operand))
            except ValueError as error:
                self._problems += [
                    f"{self._name(weight)}, {operand.name} of {forms.operation_name(use.operation)}: {error}"
                    for weight in operand.weights
                ]
                continue
            several = type(operand.value) in (list, tuple)  # then there is one form for each of its tensors
            for item, of_item in zip(operand.value, form, strict=True) if several else ((operand.value, form),):
                if id(item) in self._awaited:
                    self._arrived.setdefault(id(item), []).append((item, of_item))
        completed: dict[str, ExampleGradients] = {}
        for weight in use.weights:
            key = id(weight)
            self._awaited[key] -= 1
            if not self._awaited[key] and key in self._names and key not in self._late and key in self._arrived:
                arrived = self._arrived.pop(key)
                completed[self._names[key]] = arrived[0][1] if len(arrived) == 1 else add([form for _, form in arrived])
        return completed

    def completed_last(self) -> dict[str, ExampleGradients]:
        """What is left: parameters that other weights are derived from, or with uses that no loss reached."""
        if problems := list(dict.fromkeys(self._problems)):
            listed = "\n  ".join(problems)
            raise MissingRuleError(
                f"{len(problems)} uses of trainable parameters have no per-example gradient:\n  {listed}\n"
                "Write the operation with others of torch, freeze the parameter, register a rule with noisette.rule, "
                "or use an engine that needs none: noisette.engines.PerExampleLoop() or noisette.engines.Vmap()."
            )
        if not self._arrived:
            return {}
        left = [pair for arrived in self._arrived.values() for pair in arrived]
        return {self._names[id(parameter)]: form for parameter, form in forms.TO_PARAMETERS[0](left, self._derived)}

    def _are_only_uses(self, operand: OperandMatch) -> bool:
        """Whether each weight is a parameter with this use alone, so that its gradient is the sum of nothing else."""
        for key in map(id, operand.weights):
            if key not in self._names or key in self._late or self._uses[key] > 1:
                return False
        return True

    def _name(self, weight: Tensor) -> str:
        """The name of a weight in a message."""
        if id(weight) in self._names:
            return self._names[id(weight)]
        parents = self._derived[id(weight)].parents
        return f"a weight derived from {', '.join(self._names[id(p)] for p in parents)}"


def _form_of(operand: OperandMatch, found: Match, examples: Examples, dy: Any, *, is_only_use: bool) -> Any:
    """The gradients of one operand, from its rule: a form, or a list of them; a ValueError where no rule applies."""
    if operand.rule is None:
        raise ValueError("no rule")
    if found.unknown:
        raise ValueError(f"its rule does not know {', '.join(found.unknown)}")
    if is_only_use and isinstance(dy, Tensor) and dy.dtype in AT_LEAST_SINGLE:
        as_computed = forms.AS_COMPUTED.get(operand.rule)
        if as_computed is not None and as_computed(dy, found.arguments):
            return operand.rule(examples, dy, **found.arguments)
    # An autocast forward pass has left the weights' precision; rules compute in it, or in single precision.
    dtype = AT_LEAST_SINGLE.get(operand.weights[0].dtype, operand.weights[0].dtype)
    arguments = {name: _cast(value, dtype) for name, value in found.arguments.items()}
    return operand.rule(examples, _cast(dy, dtype), **arguments)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value with its floating-point tensors in this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is not dtype and value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value
