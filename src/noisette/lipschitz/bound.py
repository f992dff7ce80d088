"""Bounding without clipping: in a network that stretches nothing, no example's gradient exceeds a known bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from noisette.clipping.accumulator import Accumulator
from noisette.clipping.loss_checks import check_independent, check_one_per_example
from noisette.clipping.norms import AdaptiveRule, ClippingRule, Count, Group, clipping_factors
from noisette.clipping.quantile_count import count_within_norm, twice_the_count
from noisette.errors import PrivacyError
from noisette.gradients.per_example import user_hooks_disabled
from noisette.lipschitz import NormBound, is_constrained, propagation
from noisette.lipschitz.noise_allocation import Allocation, OptimalAllocation
from noisette.lipschitz.project import project
from noisette.mechanisms.bounded_sum import BoundedSum, Stateful

_SCORES = "scores"
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes; their sums are exact in any order


class LipschitzLoss(Protocol):
    """A loss whose gradient at the scores has a known bound."""

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """Bound on the norm of one example's gradient at its scores, whose norm is at most ``logit_bound``."""
        ...


@dataclass(frozen=True)
class LayerBound:
    """What is known of one part of the network under its weights of now."""

    name: str
    kind: str
    reach: float  # of its input
    gradient: float  # bound on one example's gradient at its output
    sensitivities: Mapping[str, float]  # by parameter


class LipschitzBound:
    """Bounds each example by the network it goes through: layers, loss and input have known Lipschitz constants.

    Nothing is clipped but the gradient at the scores, a few numbers per example, so a step costs what it costs without
    privacy; weights are projected back onto their set after each step. Two hooks on the model's root do that and
    ``close()`` removes them.

    Args:
        model: modules of ``noisette.nn.lipschitz`` and such of torch that have a bound; a ``BoundedInput`` comes before
            the first one that trains.
        loss: a loss of ``noisette.nn.lipschitz``; what you hand to ``backward`` is held to its bound.
        input_shape: of one example, without the batch.
        allocation: how noise is shared out among the parameters.
        logit_clipping: clips each example's gradient at the scores to less than the loss allows: ``FlatClipping(C)``,
            or ``AdaptiveClip(C)``, which costs a part of the budget.
        slack: relative, on every sensitivity, for what rounding may add.

    Guarantee: adding or removing one example changes each sum by at most its bound, for every input and every label,
    provided that no operation of the model mixes examples (the preflight checks that) and that the bounds which modules
    of the user's state of themselves hold.
    Source: Bethune et al. 2024, algorithms 1 and 2.

    Raises:
        ValueError: a number outside its domain, or nothing to train.
        PrivacyError: a module that trains and has no bound, or a trainable parameter that no module answers for.

    >>> from noisette.nn.lipschitz import BoundedInput, SpectralLinear, TauCrossEntropy
    >>> model = nn.Sequential(BoundedInput(2.0), SpectralLinear(4, 3))
    >>> bound = LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=(4,), slack=0.0)
    >>> {name: round(value, 4) for name, value in bound.sensitivities().items()}
    {'1.weight': 2.8284}
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: LipschitzLoss,
        input_shape: Sequence[int],
        allocation: Allocation | None = None,
        logit_clipping: ClippingRule | None = None,
        slack: float = 1e-4,
    ) -> None:
        if not 0 <= slack < math.inf:
            raise ValueError(f"expected a finite slack >= 0, got slack={slack}")
        self.model = model
        self.loss = loss
        self.input = NormBound(math.inf, tuple(input_shape))
        self.allocation: Allocation = allocation if allocation is not None else OptimalAllocation()
        self.logit_clipping = logit_clipping
        self.slack = float(slack)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
        self._projected: dict[str, tuple[Any, ...]] = {}
        self._group: Group | None = None  # of the batch under way: all its pieces have the same bound
        self._pending = Accumulator()
        self._counted: Tensor | None = None
        self._count: Count | None = None  # released with the last batch
        self._checked: set[str] = set()
        self._scores: GradientEdge | None = None
        self._project_if_moved()
        self.allocation.parts(self.sensitivities(), self._parameters)
        watch = _Watch(self)
        self._handles = [
            model.register_forward_pre_hook(watch.before, prepend=True),
            model.register_forward_hook(watch.after),
        ]

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters, by name."""
        return self._parameters

    def sensitivities(self) -> dict[str, float]:
        """The most one example adds to the gradient of each parameter, by name, under the weights of now.

        Raises:
            PrivacyError: there is no such bound.
        """
        _, found = propagation.backward(self.model, self.input, self.score_limit())
        non_private = [name for name, p in self._parameters.items() if p not in found]
        boundless = [name for name, p in self._parameters.items() if not found.get(p, 0.0) < math.inf]
        if non_private:
            raise PrivacyError(f"no module says what one example does to {', '.join(non_private)}")
        if boundless:
            raise PrivacyError(
                f"one example may do anything to {', '.join(boundless)}: put a noisette.nn.lipschitz.BoundedInput in "
                "front of the first module that trains, and only modules with a bound behind it"
            )
        return {name: found[p] * (1 + self.slack) for name, p in self._parameters.items()}

    def layers(self) -> list[LayerBound]:
        """The way of the bounds, one entry for each part of the model, in the order of the forward pass."""
        names: dict[Tensor, str] = {p: name for name, p in self._parameters.items()}
        lines: list[LayerBound] = []
        g = self.score_limit()
        for name, part, reach in reversed(_chain("", self.model, self.input)):
            before, found = propagation.backward(part, reach, g)
            own = {names[p]: value * (1 + self.slack) for p, value in found.items() if p in names}
            lines.append(LayerBound(name, type(part).__name__, reach.norm, g, own))
            g = before
        return lines[::-1]

    def backward(self, losses: Tensor) -> None:
        """Add the gradients of these examples to what is pending.

        Args:
            losses: one value per example, shape (b,), computed from the scores of the model's last call alone.

        Raises:
            PrivacyError: a scalar, a tensor that is not one value per example, losses that look at each other's
                scores, or a way to the weights that does not lead through the scores.
        """
        scores, self._scores = self._scores, None
        check_one_per_example(losses)
        if losses.shape[0] == 0:
            return
        if scores is None:
            raise PrivacyError(
                "the losses do not come from a call of the model: call the module itself, with gradients enabled, "
                "before each backward"
            )
        self._refuse_moved()
        self._check_kind_once(losses, scores)
        gradient, twice_counted = self._within_limit(losses, scores)
        with user_hooks_disabled(self._parameters.values()):
            grads = torch.autograd.grad([scores], list(self._parameters.values()), [gradient], allow_unused=True)
        found = {name: g for name, g in zip(self._parameters, grads, strict=True) if g is not None}
        if not all(g.sum().isfinite() or g.isfinite().all() for g in found.values()):  # a sum is quicker
            raise PrivacyError(
                "a gradient is not finite though every input is bounded: the weights have overflowed. Lower the "
                "learning rate, or start from finite weights"
            )
        self._pending.add(found)
        if twice_counted is not None:
            self._counted = twice_counted + (self._counted if self._counted is not None else 0)

    def pop_sums(self) -> list[BoundedSum]:
        """The sum of each part of the allocation, zeros where no example reached; then start anew.

        Logit clipping that counts has its count beside it, as a sum of its own.
        """
        self._project_if_moved()
        count = self._batch_group().count
        left = 1.0 if count is None else 1.0 - count.share
        parts = self.allocation.parts(self.sensitivities(), self._parameters)
        sums, counted = self._pending.pop_sums(self._parameters), self._counted
        self._group, self._counted, self._count = None, None, count
        taken = [
            BoundedSum(
                tuple(self._parameters[name] for name in part.names),
                tuple(sums[name] for name in part.names),
                part.bound,
                part.share * left,
            )
            for part in parts
        ]
        return taken if count is None else [*taken, count_within_norm(count, counted)]

    def after_step(self) -> None:
        """Project the weights, and give adaptive logit clipping the count that was released.

        Raises:
            PrivacyError: they are in half precision.
        """
        if coarse := [name for name, p in self._parameters.items() if p.dtype not in (torch.float32, torch.float64)]:
            raise PrivacyError(
                f"{', '.join(coarse)}: half precision rounds more than the slack of the bounds allows for; call "
                "model.float()"
            )
        project(self.model)
        self._projected = self._versions()
        count, self._count = self._count, None
        released = count.released.grad if count is not None else None
        if isinstance(self.logit_clipping, AdaptiveRule) and released is not None:
            self.logit_clipping.adapt(float(released))

    def state(self) -> Mapping[str, float]:
        """What logit clipping has learned from released values; empty where it learns nothing."""
        return self.logit_clipping.state() if isinstance(self.logit_clipping, Stateful) else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from what :meth:`state` gave."""
        if isinstance(self.logit_clipping, Stateful):
            self.logit_clipping.restore(state)

    def close(self) -> None:
        """Remove the hooks; the weights stay as they were last projected."""
        for handle in self._handles:
            handle.remove()

    def score_limit(self) -> float:
        """Bound on one example's gradient at the scores: what the loss allows, or less where that is clipped."""
        return min(
            self.loss.lipschitz(_finite(propagation.forward(self.model, self.input).norm)), self._batch_group().bound
        )

    def _batch_group(self) -> Group:
        if self._group is None:
            self._group = Group((_SCORES,), math.inf) if self.logit_clipping is None else _only(self.logit_clipping)
        return self._group

    def _within_limit(self, losses: Tensor, scores: GradientEdge) -> tuple[Tensor, Tensor | None]:
        """Each example's gradient at the scores, no longer than the limit; twice the count of those within the bound.

        A loss that keeps its promise is left as it is, unless it is to be clipped.
        """
        [gradient] = torch.autograd.grad(losses.sum(), [scores])
        norms = gradient.detach().double().flatten(1).norm(dim=1)
        group = self._batch_group()
        limit = Group((_SCORES,), self.score_limit(), group.factor)
        factors = clipping_factors([limit], norms.unsqueeze(0))[0]
        kept = factors.isfinite()
        shaped = (-1, *[1] * (gradient.dim() - 1))
        gradient = torch.where(kept.view(shaped), gradient * factors.to(gradient.dtype).view(shaped), 0)
        return gradient, None if group.count is None else twice_the_count(norms, group.bound)

    def _check_kind_once(self, losses: Tensor, scores: GradientEdge) -> None:
        """Each kind of loss, known by the operation it ends in, is tested on its first batch of two or more."""
        kind = losses.grad_fn.name() if losses.grad_fn is not None else ""
        if kind in self._checked:
            return
        _check_only_through(losses, scores, self._parameters)
        if losses.shape[0] > 1:
            check_independent(losses, [scores])
            if losses.isfinite().all():  # what is not a number proves nothing
                self._checked.add(kind)

    def _versions(self) -> dict[str, tuple[Any, ...]]:
        """What changes with a weight that a bound rests on, whether it is written to, replaced or cast."""
        held = {p for part in self.model.modules() if is_constrained(part) for p in part.parameters()}
        weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad or p in held}
        marks = _content_marks(list(weights.values()))
        return {
            name: (p._version, p.data_ptr(), p.dtype, mark)
            for (name, p), mark in zip(weights.items(), marks, strict=True)
        }

    def _project_if_moved(self) -> None:
        """Weights that were loaded, or moved by hand, are projected before they are used."""
        if self._projected != self._versions():
            if self._pending:
                self._refuse_moved()
            self.after_step()

    def _refuse_moved(self) -> None:
        if self._projected != self._versions():
            raise PrivacyError(
                "the weights were changed after the model's last call and before optimizer.step(): the bounds of the "
                "batch are those of the weights it began with. Change weights between batches"
            )

    def _called(self, output: Any) -> None:
        """The model has answered, with gradients enabled."""
        if not isinstance(output, Tensor) or not output.requires_grad:
            raise PrivacyError(
                f"the model must return one tensor of scores, got {type(output).__name__}: bounds walk back from there"
            )
        if torch.is_autocast_enabled(output.device.type):
            raise PrivacyError(
                "autocast rounds more than the slack of the bounds allows for; call the model outside of it"
            )
        if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
            raise PrivacyError(
                "TF32 rounds more than the slack of the bounds allows for; set torch.backends.cuda.matmul.allow_tf32 = "
                "False"
            )
        self._scores = get_gradient_edge(output)


class _Watch:
    """The hooks on the model's root. A copy of the model is not watched."""

    def __init__(self, bound: LipschitzBound | None) -> None:
        self._bound = ref(bound) if bound is not None else None

    def __deepcopy__(self, memo: dict[int, object]) -> _Watch:
        return _Watch(None)

    def __reduce__(self) -> tuple[type[_Watch], tuple[None]]:
        return _Watch, (None,)

    def _watched(self, module: nn.Module) -> LipschitzBound | None:
        bound = self._bound() if self._bound is not None else None
        return bound if bound is not None and bound.model is module else None

    def before(self, module: nn.Module, args: Any) -> None:
        if bound := self._watched(module):
            bound._project_if_moved()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and (bound := self._watched(module)):
            bound._called(output)


def _content_marks(tensors: Sequence[Tensor]) -> list[int]:
    """A number for the content of each, since what is written through ``.data`` counts up no version."""
    return [int(t.detach().contiguous().view(_INTEGERS[t.element_size()]).sum()) for t in tensors]


def _only(rule: ClippingRule) -> Group:
    groups = rule.groups([_SCORES])
    if len(groups) != 1:
        raise ValueError(
            f"logit clipping takes a rule of one bound, such as FlatClipping(0.1), got {type(rule).__name__}"
        )
    return groups[0]


def _finite(norm: float) -> float | None:
    return norm if norm < math.inf else None


def _chain(name: str, module: nn.Module, x: NormBound) -> list[tuple[str, nn.Module, NormBound]]:
    """The parts of nested sequences in order, each with its name and the reach of its input."""
    if type(module) is not nn.Sequential:
        return [(name, module, x)]
    chain: list[tuple[str, nn.Module, NormBound]] = []
    for k, part in enumerate(module):  # a part that stands in two places is two parts
        chain += _chain(f"{name}.{k}" if name else str(k), part, x)
        x = propagation.forward(part, x)
    return chain


def _check_only_through(losses: Tensor, scores: GradientEdge, parameters: Mapping[str, Tensor]) -> None:
    """Every way from the losses to the weights leads through the scores of the last call.

    Raises:
        PrivacyError: one does not, so the bound says nothing about it.
    """
    names = {id(p): name for name, p in parameters.items()}
    seen, stack, met = {scores.node}, [losses.grad_fn], False
    while stack:
        node = stack.pop()
        met = met or node is scores.node
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in names:
            raise PrivacyError(
                f"the losses reach {names[id(node.variable)]} by a way around the scores of the model's last call: "  # pyright: ignore[reportAttributeAccessIssue]
                "compute them from these scores alone; penalties on the weights belong into the optimizer"
            )
        stack += [child for child, _ in node.next_functions]
    if not met:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
