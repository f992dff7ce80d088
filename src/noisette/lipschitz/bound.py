"""Sensitivities without clipping: Lipschitz constants of the layers bound the gradient of every example."""

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
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes; their sums do not depend on the order


class LipschitzLoss(Protocol):
    """A loss with a known Lipschitz constant."""

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """Bound on the norm of one example's gradient with respect to its scores.

        Args:
            logit_bound: bound on the norm of the scores; ``None`` if there is none.
        """
        ...


@dataclass(frozen=True)
class LayerBound:
    """Bounds on one example at one layer, for the current weights."""

    name: str
    kind: str
    input_norm: float  # bound on the norm of the layer's input
    gradient_norm: float  # bound on the norm of the gradient with respect to the layer's output
    sensitivities: Mapping[str, float]  # by parameter


class LipschitzBound:
    """Derives the sensitivity of each parameter from the Lipschitz constants of the layers, the input and the loss.

    Only the gradient with respect to the scores is clipped, a vector as short as the scores, so a step takes as long as
    one without privacy. The weights are projected back onto their sets after each step. Two hooks on the model
    prepare each call; ``close()`` removes them.

    Args:
        model: layers of ``noisette.nn.lipschitz`` and torch modules that have a bound, with a ``BoundedInput`` in front
            of the first layer that trains.
        loss: a loss of ``noisette.nn.lipschitz``; gradients of the losses passed to ``backward`` are scaled down to its
            Lipschitz constant.
        input_shape: shape of one example, without the batch axis.
        allocation: how the noise is divided among the parameters.
        logit_clipping: clips each example's gradient with respect to the scores below the Lipschitz constant of the
            loss: ``FlatClipping(C)``, or ``AdaptiveClip(C)``, which takes a share of the privacy budget.
        slack: relative increase of every sensitivity that covers rounding errors.

    Guarantee: adding or removing one example changes each sum by at most its bound, for every input and every label,
    provided that no operation of the model mixes examples (the preflight checks this) and that the bounds stated by the
    user's own modules hold.
    Source: Bethune et al. 2024, algorithms 1 and 2.

    Raises:
        ValueError: a number is outside its domain, or the model has no trainable parameter.
        PrivacyError: a module with trainable parameters has no bound, or no module bounds a trainable parameter.

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
        self._group: Group | None = None  # clipping of the current batch: all its microbatches have the same bound
        self._pending = Accumulator()
        self._counted: Tensor | None = None
        self._count: Count | None = None  # released with the last batch
        self._scores: GradientEdge | None = None
        self._project_if_changed()
        self.allocation.parts(self.sensitivities(), self._parameters)
        hooks = _Hooks(self)
        self._handles = [
            model.register_forward_pre_hook(hooks.before, prepend=True),
            model.register_forward_hook(hooks.after),
        ]

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters, by name."""
        return self._parameters

    def sensitivities(self) -> dict[str, float]:
        """Bound on one example's gradient of each parameter, by name, for the current weights.

        Raises:
            PrivacyError: a parameter has no finite bound.
        """
        _, found = propagation.backward(self.model, self.input, self.score_gradient_bound())
        if missing := [name for name, p in self._parameters.items() if p not in found]:
            raise PrivacyError(
                f"no module states a sensitivity for {', '.join(missing)}: return one from "
                "bound_backward, or freeze the parameter (requires_grad=False)"
            )
        if infinite := [name for name, p in self._parameters.items() if not found[p] < math.inf]:
            raise PrivacyError(
                f"no finite sensitivity is known for {', '.join(infinite)}: put a "
                "noisette.nn.lipschitz.BoundedInput in front of the first module that trains, and only modules with a "
                "bound behind it"
            )
        return {name: found[p] * (1 + self.slack) for name, p in self._parameters.items()}

    def layers(self) -> list[LayerBound]:
        """The bounds at each layer of the model, in the order of the forward pass."""
        names: dict[Tensor, str] = {p: name for name, p in self._parameters.items()}
        bounds: list[LayerBound] = []
        g = self.score_gradient_bound()
        for name, layer, x in reversed(propagation.layers(self.model, self.input)):
            g_input, found = propagation.backward(layer, x, g)
            own = {names[p]: value * (1 + self.slack) for p, value in found.items() if p in names}
            bounds.append(LayerBound(name, type(layer).__name__, x.norm, g, own))
            g = g_input
        return bounds[::-1]

    def backward(self, losses: Tensor) -> None:
        """Add the gradients of these examples to the pending sums.

        Args:
            losses: one value per example, shape (b,), computed only from the scores of the model's last call.

        Raises:
            PrivacyError: the losses are a scalar or another tensor that is not one value per example, a loss depends on
                another example's scores, or the losses depend on a weight other than through the scores.
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
        self._refuse_changed_weights()
        _check_only_through_scores(losses, scores, self._parameters)
        check_independent(losses, [scores], one_row_each=True)
        gradient, twice_counted = self._clip_at_scores(losses, scores)
        with user_hooks_disabled(self._parameters.values()):
            grads = torch.autograd.grad([scores], list(self._parameters.values()), [gradient], allow_unused=True)
        found = {name: g for name, g in zip(self._parameters, grads, strict=True) if g is not None}
        if not all(g.sum().isfinite() or g.isfinite().all() for g in found.values()):  # the sum is a fast first test
            raise PrivacyError(
                "a gradient is not finite though every input is bounded: the weights have overflowed. Lower the "
                "learning rate, or start from finite weights"
            )
        self._pending.add(found)
        if twice_counted is not None:
            self._counted = twice_counted + (self._counted if self._counted is not None else 0)

    def pop_sums(self) -> list[BoundedSum]:
        """The pending sum of each part of the allocation, zeros without examples; nothing is pending afterwards.

        Adaptive logit clipping adds one more sum, its count of examples within the clipping norm.
        """
        self._project_if_changed()
        count = self._batch_group().count
        left = 1.0 if count is None else 1.0 - count.share
        parts = self.allocation.parts(self.sensitivities(), self._parameters)
        sums, counted = self._pending.pop_sums(self._parameters), self._counted
        self._group, self._counted, self._count = None, None, count
        bounded = [
            BoundedSum(
                tuple(self._parameters[name] for name in part.names),
                tuple(sums[name] for name in part.names),
                part.bound,
                part.share * left,
            )
            for part in parts
        ]
        return bounded if count is None else [*bounded, count_within_norm(count, counted)]

    def after_step(self) -> None:
        """Project the weights onto their sets, and give adaptive logit clipping the count that was released.

        Raises:
            PrivacyError: the weights are in half precision.
        """
        if half := [name for name, p in self._parameters.items() if p.dtype not in (torch.float32, torch.float64)]:
            raise PrivacyError(
                f"{', '.join(half)}: rounding in half precision exceeds the slack of the bounds; call model.float()"
            )
        project(self.model)
        self._projected = self._versions()
        self._adapt()

    def state(self) -> Mapping[str, float]:
        """State that logit clipping derives from released values; empty if it has none."""
        return self.logit_clipping.state() if isinstance(self.logit_clipping, Stateful) else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what :meth:`state` returned."""
        if isinstance(self.logit_clipping, Stateful):
            self.logit_clipping.restore(state)

    def close(self) -> None:
        """Remove the hooks; the weights keep their last projected values."""
        for handle in self._handles:
            handle.remove()

    def score_gradient_bound(self) -> float:
        """Bound on one example's gradient with respect to its scores.

        It is the loss's Lipschitz constant, or the logit clipping norm if that is smaller.
        """
        norm = propagation.forward(self.model, self.input).norm
        return min(self.loss.lipschitz(norm if norm < math.inf else None), self._batch_group().bound)

    def _batch_group(self) -> Group:
        if self._group is None:
            rule = self.logit_clipping
            self._adapt()  # also where the optimizer failed after a release
            self._group = Group((_SCORES,), math.inf) if rule is None else _single_group(rule)
        return self._group

    def _adapt(self) -> None:
        released = self._count.released.grad if self._count is not None else None
        if isinstance(self.logit_clipping, AdaptiveRule) and released is not None:
            self.logit_clipping.adapt(released)

    def _clip_at_scores(self, losses: Tensor, scores: GradientEdge) -> tuple[Tensor, Tensor | None]:
        """Scale each example's gradient with respect to the scores down to :meth:`score_gradient_bound`.

        A gradient that is not finite becomes zeros. Without logit clipping nothing else changes, unless the loss
        exceeds its stated Lipschitz constant.

        Returns:
            The gradients, of the shape of the scores, and twice the count for the quantile of an adaptive clipping
            norm, where an example counts +1/2 within the norm and -1/2 above (``None`` without adaptive clipping).
        """
        [gradient] = torch.autograd.grad(losses.sum(), [scores])
        norms = gradient.detach().double().flatten(1).norm(dim=1)
        group = self._batch_group()
        limit = Group((_SCORES,), self.score_gradient_bound(), group.factor)
        factors = clipping_factors([limit], norms.unsqueeze(0))[0]
        kept = factors.isfinite()
        shaped = (-1, *[1] * (gradient.dim() - 1))
        gradient = torch.where(kept.view(shaped), gradient * factors.to(gradient.dtype).view(shaped), 0)
        return gradient, None if group.count is None else twice_the_count(norms, group.bound)

    def _versions(self) -> dict[str, tuple[Any, ...]]:
        """A fingerprint of each weight that a bound depends on; it changes if the weight is written, replaced or cast.

        Writes through ``.data`` do not increase ``_version``, so a checksum of the bits is part of it.
        """
        constrained = {p for module in self.model.modules() if is_constrained(module) for p in module.parameters()}
        return {
            name: (p._version, p.data_ptr(), p.dtype, _checksum(p))
            for name, p in self.model.named_parameters()
            if p.requires_grad or p in constrained
        }

    def _project_if_changed(self) -> None:
        """Project weights that the user loaded or changed since the last projection.

        Raises:
            PrivacyError: gradients of this batch are already pending.
        """
        if self._projected != self._versions():
            if self._pending:
                self._refuse_changed_weights()
            self.after_step()

    def _refuse_changed_weights(self) -> None:
        if self._projected != self._versions():
            raise PrivacyError(
                "the weights were changed after the model's last call and before optimizer.step(), but the bounds of a "
                "batch are those of the weights at its start. Change weights between batches"
            )

    def _record_scores(self, output: Any) -> None:
        """Keep the scores that the model returned; the next :meth:`backward` starts from them.

        Raises:
            PrivacyError: the output is not one tensor with a gradient, or it was computed in low precision.
        """
        if not isinstance(output, Tensor) or not output.requires_grad:
            raise PrivacyError(
                f"the model must return one tensor of scores that requires a gradient, got {type(output).__name__}"
            )
        if torch.is_autocast_enabled(output.device.type):
            raise PrivacyError("rounding under autocast exceeds the slack of the bounds; call the model outside of it")
        if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
            raise PrivacyError(
                "rounding in TF32 exceeds the slack of the bounds; set torch.backends.cuda.matmul.allow_tf32 = False"
            )
        self._scores = get_gradient_edge(output)


class _Hooks:
    """The hooks on the model. In a copy of the model they do nothing."""

    def __init__(self, bound: LipschitzBound | None) -> None:
        self._bound = ref(bound) if bound is not None else None

    def __deepcopy__(self, memo: dict[int, object]) -> _Hooks:
        return _Hooks(None)

    def __reduce__(self) -> tuple[type[_Hooks], tuple[None]]:
        return _Hooks, (None,)

    def _bound_of(self, module: nn.Module) -> LipschitzBound | None:
        bound = self._bound() if self._bound is not None else None
        return bound if bound is not None and bound.model is module else None

    def before(self, module: nn.Module, args: Any) -> None:
        if bound := self._bound_of(module):
            bound._project_if_changed()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and (bound := self._bound_of(module)):
            bound._record_scores(output)


def _checksum(tensor: Tensor) -> int:
    """The sum of the tensor's elements, read as integers."""
    return int(tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).sum())


def _single_group(rule: ClippingRule) -> Group:
    groups = rule.groups([_SCORES])
    if len(groups) != 1:
        raise ValueError(
            f"logit clipping needs a rule with one clipping norm, such as FlatClipping(0.1), got {type(rule).__name__}"
        )
    return groups[0]


def _check_only_through_scores(losses: Tensor, scores: GradientEdge, parameters: Mapping[str, Tensor]) -> None:
    """Check that the losses depend on the parameters only through the scores of the last call.

    The search over the autograd graph starts at the losses and does not continue below the scores.

    Raises:
        PrivacyError: a parameter is reached another way, which the bound does not cover, or the scores are not reached.
    """
    names = {id(p): name for name, p in parameters.items()}
    seen, stack, scores_reached = {scores.node}, [losses.grad_fn], False
    while stack:
        node = stack.pop()
        scores_reached = scores_reached or node is scores.node
        if node is None or node in seen:
            continue
        seen.add(node)
        if name := names.get(id(getattr(node, "variable", None))):
            raise PrivacyError(
                f"the losses depend on {name} other than through the scores of the model's last call: "
                "compute them only from these scores; put penalties on the weights into the optimizer (weight_decay)"
            )
        stack += [child for child, _ in node.next_functions]
    if not scores_reached:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
