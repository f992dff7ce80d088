"""From one vector of losses to the per-example gradients of every parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from noisette.core.forms import (
    AT_LEAST_SINGLE,
    Dense,
    ExampleGradients,
    Examples,
    Outer,
    PerExampleRow,
    add,
    compact,
    placed,
)
from noisette.core.recording import DerivedWeight, Recording, Use
from noisette.core.registry import AS_COMPUTED, DERIVATIONS, Match, OperandMatch, match, operation_name
from noisette.errors import MissingRuleError, PrivacyError

Visitor = Callable[[int, Any], None]  # number of the use; its output's gradient, a tuple where it has several outputs


class Covering(Protocol):
    """A place of the graph that accounts for the parameters at it, such as a :class:`.recording.Use`."""

    @property
    def edges(self) -> Sequence[GradientEdge]:
        """Its outputs at which a gradient can arrive."""
        ...

    @property
    def upstream(self) -> Sequence[Node]:
        """Where the graph continues below it."""
        ...


@dataclass(frozen=True)
class LossGraph:
    """What the losses depend on."""

    uncovered: tuple[str, ...]  # names of trainable parameters that the losses reach otherwise than through a use
    reached: frozenset[Node]  # output nodes of the uses that the losses depend on
    above: frozenset[Node]  # those of the reached nodes from which the graph leads to another reached one
    custom: bool  # a function written in Python or a module's backward hook lies on the way to a leaf


def search(losses: Tensor, uses: Sequence[Covering], parameters: Mapping[str, Tensor]) -> LossGraph:
    """Walk the autograd graph from the losses to its leaves, each node once.

    Which uses lie above others is a question about gradients, so it follows the edges of the graph. Whether a parameter
    is covered is a question about the tape: at the output of a use the search for uncovered parameters continues at
    the use's data arguments, so that it meets a parameter only where the losses depend on it otherwise.

    For the losses of ``y = relu(x @ A) @ B`` with uses ``@ A`` and ``@ B`` the walk meets the output node of ``@ B``,
    relu, the output node of ``@ A``, and the leaves A and B. Both uses are reached, ``@ B`` is above ``@ A``, and no
    parameter is uncovered: A and B lie behind uses. With ``losses = y.sum(1) + A.square().sum()`` A is uncovered.

    Raises:
        PrivacyError: a part of the model has no graph until the backward pass.
    """
    upstream: dict[Node, list[Node]] = {}
    for use in uses:
        for edge in use.edges:
            upstream.setdefault(edge.node, []).extend(use.upstream)
    above: set[Node] = set()
    children: dict[Node, list[Node]] = {}  # of the nodes met so far
    custom = False
    leads: dict[Node, bool] = {}  # whether a use's node lies at or below a node; in the order in which nodes are done
    stack = [losses.grad_fn] if losses.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node not in children:
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise PrivacyError(
                    "torch.utils.checkpoint with use_reentrant=True hides the parameters inside of it; pass "
                    "use_reentrant=False, which gives the same activations"
                )
            custom |= isinstance(node, BackwardCFunction) and not _is_own(node)
            children[node] = [child for child, _ in node.next_functions if child is not None]
            stack += [child for child in children[node] if child not in children]
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
    return LossGraph(tuple(sorted(uncovered)), frozenset(upstream.keys() & exposed), frozenset(above), custom)


def _is_own(node: BackwardCFunction) -> bool:
    """Whether the node is of a function of this library, whose backward passes are linear."""
    return getattr(type(node), "_forward_cls", node).__module__.startswith("noisette.")


def visit_output_gradients(
    losses: Tensor,
    cotangent: Tensor,
    uses: Mapping[int, Use],
    graph: LossGraph,
    visit: Visitor,
    *,
    retain_graph: bool,
) -> None:
    """Call ``visit`` for each use that the losses depend on, as soon as its output's gradient is complete.

    One backward pass over activations; no weight gradient is computed.

    A gradient is dropped after its visit, so the gradients of two layers need no memory at the same time. ``visit`` may
    remove its use from ``uses``.

    The pass ends at the lowest uses, those with no other use below them, and returns their gradients. It goes through
    all others on its way, where a hook on their output node calls ``visit``.

    Args:
        losses: one value per example, shape (b,).
        cotangent: the gradient of the losses, shape (b,).
        uses: every recorded use, by number.
        graph: what the losses depend on.
        visit: called with the number of a use and the gradient at its output.
        retain_graph: whether another backward pass will follow.
    """
    targets: list[tuple[int, int | None, GradientEdge]] = []  # number of the use, output if it has several, edge
    joint: dict[int, list[Tensor | None]] = {}
    handles: list[Any] = []
    for k, use in uses.items():
        if use.several:
            joint[k] = [None] * len(use.outputs)
            targets += [(k, output, edge) for output, edge in enumerate(use.outputs) if edge is not None]
        elif (edge := use.edges[0]).node in graph.above:
            handles.append(edge.node.register_prehook(partial(_visit_on_arrival, visit, k, edge.output_nr)))
        else:
            targets.append((k, None, edge))
    try:
        arriving = torch.autograd.grad(
            losses,
            [edge for _, _, edge in targets],
            grad_outputs=cotangent,
            allow_unused=True,
            retain_graph=retain_graph,
        )
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


def _visit_on_arrival(visit: Visitor, k: int, output: int, gradients: Sequence[Tensor | None]) -> None:
    """A hook on the output node of use ``k``: ``gradients`` has one entry for each output of that node."""
    if (dy := gradients[output]) is not None:
        visit(k, dy)


_SUMS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_DIFFERENCES = (torch.sub, Tensor.sub, Tensor.__sub__)
_EXPANSIONS = (Tensor.expand, Tensor.expand_as, torch.broadcast_to)


@dataclass(frozen=True)
class Region:
    """The memory of a view: offset in elements from the start of the storage, size and stride."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(view: Tensor) -> Region:
        return Region(int(view.storage_offset()), tuple(view.shape), view.stride())


@dataclass(frozen=True)
class Slices:
    """Gradients of a parameter from those of views of it that do not overlap, zero elsewhere."""

    parameter: Tensor
    parts: tuple[tuple[Region, ExampleGradients], ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([part.squared_norms() for _, part in self.parts]).sum(0)

    def explicit(self) -> Tensor:
        gradients = [part.explicit() for _, part in self.parts]
        full = gradients[0].new_zeros(gradients[0].shape[0], *self.parameter.shape)
        for view, gradient in zip(self._views(full), gradients, strict=True):
            view.add_(gradient)
        return full

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums = [part.weighted_sum(weights) for _, part in self.parts]
        full = sums[0].new_zeros(1, *self.parameter.shape)
        for view, total in zip(self._views(full), sums, strict=True):
            view.add_(total)
        return full[0]

    def _views(self, full: Tensor) -> list[Tensor]:
        """Each region of ``full``, (b, *parameter.shape): views (b, *region.size)."""
        count, start = self.parameter.numel(), self.parameter.storage_offset()
        return [
            full.as_strided((full.shape[0], *at.size), (count, *at.stride), at.offset - start) for at, _ in self.parts
        ]

    def select(self, examples: Tensor | slice) -> Slices:
        return Slices(self.parameter, tuple((at, part.select(examples)) for at, part in self.parts))


@compact.register
def _(form: Slices) -> Slices:
    return Slices(form.parameter, tuple((at, compact(part)) for at, part in form.parts))


@lru_cache(maxsize=256)
def _disjoint(regions: tuple[Region, ...]) -> bool:
    """Whether no element of memory belongs to two elements of these regions."""
    end = max(at.offset + sum((n - 1) * s for n, s in zip(at.size, at.stride, strict=True)) for at in regions) + 1
    index = torch.arange(end)
    touched = torch.cat([index.as_strided(at.size, at.stride, at.offset).reshape(-1) for at in regions])
    return touched.unique().numel() == touched.numel()


def _is_view(derived: Tensor, parameter: Tensor) -> bool:
    """Whether each element of a derived weight is another element of its parameter."""
    same_memory = derived.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    plain = same_memory and derived.dtype == parameter.dtype and parameter.is_contiguous()
    return plain and not _overlaps_itself(derived)


def _overlaps_itself(view: Tensor) -> bool:
    """Whether two elements of the view may share memory, as after ``expand`` or ``unfold``.

    Axes are added from the smallest stride on; each stride must exceed the extent of the axes before it. Stride 1 and
    size 3 has extent 2: a next stride of 3 is free of overlap, a next stride of 2 is not.
    """
    extent = 0
    for stride, n in sorted(zip(view.stride(), view.shape, strict=True)):
        if n > 1 and stride <= extent:
            return True
        extent += (n - 1) * stride
    return False


def to_parameters(
    gradients: Sequence[tuple[Tensor, ExampleGradients]], derived: Mapping[int, DerivedWeight]
) -> list[tuple[Tensor, ExampleGradients]]:
    """The gradients of each parameter, once, given those of the parameters and derived weights that were used.

    All gradients of one parameter are added before any norm is taken: those of its own uses, of views of it, and of
    other weights derived from it.

    Args:
        gradients: each tensor that was used, with its gradients; a tensor may occur several times.
        derived: how derived weights were computed, by their identity.
    """
    if not derived:
        return _add_by_tensor(gradients)
    direct: dict[int, tuple[Tensor, list[tuple[Region, ExampleGradients]]]] = {}
    views: dict[int, list[tuple[Region, ExampleGradients]]] = {}
    pending = _add_by_tensor(gradients)
    while pending:
        tensor, form = pending.pop(0)
        weight = derived.get(id(tensor))
        if weight is None:
            direct.setdefault(id(tensor), (tensor, []))[1].append((Region.of(tensor), form))
            continue
        parent = weight.parents[0]
        if isinstance(form, PerExampleRow) or len(weight.parents) > 1 or not _is_view(tensor, parent):
            pending += _propagate(weight, form)
        else:
            direct.setdefault(id(parent), (parent, []))
            views.setdefault(id(parent), []).append(_untransposed(Region.of(tensor), form))
    return [(parameter, _merge(parameter, parts + views.get(key, []))) for key, (parameter, parts) in direct.items()]


def _add_by_tensor(gradients: Sequence[tuple[Tensor, ExampleGradients]]) -> list[tuple[Tensor, ExampleGradients]]:
    grouped: dict[int, tuple[Tensor, list[ExampleGradients]]] = {}
    for tensor, form in gradients:
        grouped.setdefault(id(tensor), (tensor, []))[1].append(form)
    return [(tensor, add(forms)) for tensor, forms in grouped.values()]


def _untransposed(at: Region, form: ExampleGradients) -> tuple[Region, ExampleGradients]:
    """The region and gradients of W for those of W^T, so that both are one region."""
    if len(at.size) == 2 and at.stride[0] < at.stride[1] and isinstance(form, Outer):
        return Region(at.offset, at.size[::-1], at.stride[::-1]), form.transposed()
    return at, form


def _merge(parameter: Tensor, parts: Sequence[tuple[Region, ExampleGradients]]) -> ExampleGradients:
    """The sum of gradients of the whole parameter and of regions of it; written out where regions overlap."""
    by_region: dict[Region, list[ExampleGradients]] = {}
    for at, form in parts:
        by_region.setdefault(at, []).append(form)
    slices = tuple((at, add(added)) for at, added in by_region.items())
    if len(slices) == 1 and slices[0][0] == Region.of(parameter):
        return slices[0][1]
    if _disjoint(tuple(at for at, _ in slices)):
        return Slices(parameter, slices)
    return Dense(Slices(parameter, slices).explicit())


def _propagate(weight: DerivedWeight, form: ExampleGradients) -> list[tuple[Tensor, ExampleGradients]]:
    """Gradients of the tensors from which a derived weight was computed, from its own gradients."""
    if (derive := DERIVATIONS.get(weight.operation)) and (found := derive(weight, form)) is not None:
        return found
    if isinstance(form, PerExampleRow) and weight.operation in _EXPANSIONS and isinstance(weight.args[0], Tensor):
        source = weight.args[0]
        return [(source, _sum_expanded(source, form))]
    if terms := _terms(weight):
        return [(term, form) for term in terms]
    gradients = torch.autograd.grad(
        weight.tensor,
        weight.parents,
        form.explicit().to(weight.tensor.dtype),
        is_grads_batched=True,
        retain_graph=True,
        materialize_grads=True,
    )
    return [
        (parent, Dense(gradient.to(AT_LEAST_SINGLE.get(gradient.dtype, gradient.dtype))))
        for parent, gradient in zip(weight.parents, gradients, strict=True)
    ]


def _terms(weight: DerivedWeight) -> list[Tensor]:
    """The parameters whose gradient is that of this sum or difference; none if any term's gradient differs from it."""
    if weight.kwargs or weight.operation not in _SUMS + _DIFFERENCES:
        return []
    terms = [term for term in weight.args if isinstance(term, Tensor) and term.requires_grad]
    # A term that is no leaf may have been overwritten since, and then has another derivation.
    like = all(p.is_leaf and p.shape == weight.tensor.shape and p.dtype == weight.tensor.dtype for p in terms)
    negated = weight.operation in _DIFFERENCES and terms[-1] is weight.args[1]
    return terms if like and not negated else []


def _sum_expanded(source: Tensor, form: PerExampleRow) -> Dense:
    """Gradients of a tensor that was expanded to the batch: row i summed over the other axes that were expanded."""
    aligned = [1] * (form.rows.dim() - source.dim()) + list(source.shape)
    del aligned[form.axis]  # in the rows, this axis is the first
    rows = form.rows.sum_to_size(form.rows.shape[0], *aligned)
    return Dense(rows.reshape(rows.shape[0], *source.shape))


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
                "Write the operation with ones that `noisette doctor` lists, freeze the parameter, register a rule "
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
    as_computed = AS_COMPUTED.get(operand.rule)
    if is_only_use and as_computed is not None and as_computed(examples, dy, found.arguments):
        return operand.rule(examples, dy, **found.arguments)
    dy, arguments = _cast(dy, dtype), {name: _cast(value, dtype) for name, value in found.arguments.items()}
    if operand.third_party:
        from noisette.rules.rule_check import check_custom_rule

        check_custom_rule(operand.rule, examples, dy, use, operand.name, found.arguments)
    return operand.rule(examples, dy, **arguments)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value with its floating-point tensors in this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is not dtype and value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value
