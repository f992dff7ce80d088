"""Sensitivities without clipping: Lipschitz constants of the layers bound the gradient of every example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from noisette.clipping.loss_checks import check_independent, check_one_per_example
from noisette.core.backward import user_hooks_disabled
from noisette.core.clip import Accumulator, ClippingRule
from noisette.core.outside import OutsideTensors
from noisette.core.release import BoundedSum, Stateful
from noisette.core.trace import Loss, Microbatch, vectorized_losses
from noisette.errors import PrivacyError
from noisette.gradients.outside_watch import OutsideWatch
from noisette.lipschitz import NormBound, propagation
from noisette.lipschitz.model_call import Limits, ModelCall, ModelHooks, check_hooks_only_looked, made, record_call
from noisette.lipschitz.module_hooks import RandomState, has_foreign_hooks, module_hooks_disabled
from noisette.lipschitz.noise_allocation import Allocation, OptimalAllocation
from noisette.lipschitz.project import project
from noisette.lipschitz.score_clipping import ScoreClipping
from noisette.lipschitz.through_scores import check_only_through_scores
from noisette.lipschitz.weight_fingerprint import WeightFingerprint, weight_fingerprint
from noisette.ranks.shards import is_sharded
from noisette.ranks.wrappers import Unwrapped


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
    one without privacy. The weights are projected back onto their sets after each step. Hooks on the model prepare and
    record each call; ``close()`` removes them. Where the user has hooks on the model too, the gradient is that of a
    second call without them.

    Args:
        model: layers of ``noisette.nn.lipschitz`` and torch modules that have a bound, with a ``BoundedInput`` in front
            of the first layer that trains.
        loss: a loss of ``noisette.nn.lipschitz``; gradients of the losses passed to ``backward`` are scaled down to its
            Lipschitz constant.
        input_shape: shape of one example, without the batch axis; bounds depend on it, so others are refused.
        allocation: how the noise is divided among the parameters.
        logit_clipping: clips each example's gradient with respect to the scores below the Lipschitz constant of the
            loss: ``FlatClipping(C)``, or ``AdaptiveClip(C)``, which takes a share of the privacy budget.
        slack: relative increase of every sensitivity that covers rounding errors.

    Guarantee: adding or removing one example changes each sum by at most its bound, for every input and every label,
    provided that the bounds stated by the user's own modules hold and, for :meth:`backward`, that no operation of the
    model mixes examples (the preflight checks this).
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
        self._unwrapped = Unwrapped(model)
        self.model = model = self._unwrapped.module
        if any(map(is_sharded, model.parameters())):
            raise PrivacyError(
                "the weights of a Lipschitz network are projected as whole matrices, so they cannot be sharded; give "
                "each rank the whole model"
            )
        self.loss = loss
        self.input = NormBound(math.inf, tuple(input_shape))
        self.allocation: Allocation = allocation if allocation is not None else OptimalAllocation()
        self._at_scores = ScoreClipping(logit_clipping)
        self.slack = float(slack)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
        self._projected: WeightFingerprint | None = None
        self._pending = Accumulator()
        self._outside = OutsideTensors()
        self._call: ModelCall | None = None  # the last one that no backward has used
        self._random: RandomState | None = None  # before the call in progress, if hooks of the user run in it
        self._held: Mapping[str, float] | None = None  # sensitivities of the batch: those of its first microbatch
        self._project_if_changed()
        self.allocation.parts(self.sensitivities(), self._parameters)
        self._handles = ModelHooks(self).register(model)

    @property
    def logit_clipping(self) -> ClippingRule | None:
        """The rule that lowers the bound at the scores."""
        return self._at_scores.rule

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, without the batch axis."""
        return self.input.shape

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

    def accumulate_nothing(self) -> None:
        """Nothing is exchanged in a microbatch of a model that is not sharded."""

    def backward(self, losses: Tensor) -> None:
        """Add the gradients of these examples to the pending sums.

        Args:
            losses: one value per example, shape (b,), computed only from the scores of the model's last call.

        Raises:
            PrivacyError: the losses are a scalar or another tensor that is not one value per example, a loss depends on
                another example's scores, or the losses depend on a weight other than through the scores; or the bounds
                have grown since the first microbatch.
        """
        call, self._call = self._call, None
        check_one_per_example(losses)
        if losses.shape[0] == 0:
            return
        call = made(call, "the model itself, with gradients enabled, before each backward")
        if call.vectorized_axis is not None or losses.shape[0] != call.examples:
            raise PrivacyError(
                f"there are {losses.shape[0]} losses for {call.examples} rows of scores, but the bounds are those of "
                "examples with one row and one loss each. Give one loss for each row"
            )
        self._refuse_changed_weights()
        check_only_through_scores(losses, call.scores, self._parameters)
        check_independent(losses, [call.scores], one_row_each=True)
        self._add_gradients(losses, call)

    def before_first_batch(self) -> None:
        """Remember which tensors exist, so that a vectorised loss uses no other from outside."""
        self._outside.before_first_batch()

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **named: Any) -> None:
        """Add the gradients of these examples to the pending sums, from the loss of one example.

        The loss is vectorised by ``torch.func.vmap``, so no example can enter the loss of another one.

        Args:
            loss: called with the model and the arguments of one example, whose tensors have a batch axis of length 1;
                returns a scalar, or a vector of one, computed from the scores of its last call of the model.
            batch: tensors whose first axis holds the examples, also in lists and dictionaries; anything else is passed
                to every call as it is.
            public: tensors that the loss uses otherwise than as arguments, and that no record has been used for.
            named: named arguments of the loss, as ``batch``.

        Raises:
            PrivacyError: the arguments hold no tensor, or tensors of different lengths; the loss is not one number,
                does not depend on the scores of an example, or depends on a weight other than through them; or the
                bounds have grown since the first microbatch.
        """
        self._project_if_changed()
        self._call = None
        microbatch = Microbatch(batch, named)
        if microbatch.count == 0:
            return
        with OutsideWatch(self.model, self._outside, public):
            losses = vectorized_losses(loss, self.model, microbatch)
        self._outside.end()
        call, self._call = self._call, None
        check_one_per_example(losses)
        call = made(call, "it in the loss, with gradients enabled")
        if call.vectorized_axis is None:
            raise PrivacyError("the scores do not depend on the example: call the model with the loss's own arguments")
        self._refuse_changed_weights()
        check_only_through_scores(losses, call.scores, self._parameters)
        self._add_gradients(losses, call)

    def _add_gradients(self, losses: Tensor, call: ModelCall) -> None:
        """Add the gradients of all parameters, from gradients at the scores that are within their bound.

        They are those of a call in which no hook of the user runs.
        """
        self._refuse_grown_bounds(call.limits)
        gradient, twice_counted = self._at_scores.clip(losses, call)
        with module_hooks_disabled(self.model):
            found = self._gradients(call.scores, gradient)
        if call.hooked is not None:
            check_hooks_only_looked(self._gradients(call.hooked, gradient), found)
        found = {name: g for name, g in found.items() if g is not None}
        if not all(g.sum().isfinite() or g.isfinite().all() for g in found.values()):  # the sum is a fast first test
            raise PrivacyError(
                "a gradient is not finite though every input is bounded: the weights have overflowed. Lower the "
                "learning rate, or start from finite weights"
            )
        self._pending.add(found)
        self._held = self._held or call.limits.sensitivities
        self._at_scores.add_count(twice_counted)

    def _gradients(self, scores: GradientEdge, gradient: Tensor) -> dict[str, Tensor | None]:
        """The gradients of the parameters, for this gradient at the scores."""
        with user_hooks_disabled(self._parameters.values()):
            grads = torch.autograd.grad([scores], list(self._parameters.values()), [gradient], allow_unused=True)
        return dict(zip(self._parameters, grads, strict=True))

    def pop_sums(self) -> list[BoundedSum]:
        """The pending sum of each part of the allocation, zeros without examples; nothing is pending afterwards.

        Adaptive logit clipping adds one more sum, its count of examples within the clipping norm.
        """
        self._project_if_changed()
        held = self._held if self._held is not None else self.sensitivities()
        parts = self.allocation.parts(held, self._parameters)
        sums, count = self._pending.pop_sums(self._parameters), self._at_scores.pop_count()
        self._held = None
        left = 1.0 if count is None or count.share is None else 1.0 - count.share
        bounded = [
            BoundedSum(
                tuple(self._parameters[name] for name in part.names),
                tuple(sums[name] for name in part.names),
                part.bound,
                part.share * left,
            )
            for part in parts
        ]
        return bounded if count is None else [*bounded, count]

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it nothing is pending; what was is there again afterwards."""
        kept = self._pending, self._call, self._held, self._at_scores
        self._pending, self._call, self._held = Accumulator(), None, None
        self._at_scores = ScoreClipping(self._at_scores.rule)
        try:
            yield
        finally:
            self._pending, self._call, self._held, self._at_scores = kept

    def before_batch(self) -> None:
        """Project weights that the user loaded or changed since the last step."""
        self._project_if_changed()

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
        self._projected = weight_fingerprint(self.model)
        self._at_scores.adapt()

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
        self._unwrapped.close()

    def score_gradient_bound(self) -> float:
        """Bound on one example's gradient with respect to its scores.

        It is the loss's Lipschitz constant, or the logit clipping norm if that is smaller.
        """
        norm = propagation.forward(self.model, self.input).norm
        return min(self.loss.lipschitz(norm if norm < math.inf else None), self._at_scores.group.bound)

    def before_call(self) -> None:
        """Called by a hook: project the weights if they were changed.

        Raises:
            PrivacyError: they were changed within a batch.
        """
        self._project_if_changed()
        self._random = RandomState(self.model) if has_foreign_hooks(self.model) else None

    def after_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Tensor:
        """Called by a hook: record the scores, from which the next backward starts, and return them.

        Raises:
            PrivacyError: the call is not one that the bounds are about.
        """
        random, self._random = self._random, None
        with torch._C.DisableTorchFunction():  # a mode around the call is about the user's operations
            limits = Limits(self.score_gradient_bound(), self.sensitivities())
            scores, self._call = record_call(self.model, self.input.shape, args, kwargs, output, random, limits)
        return scores

    def _refuse_grown_bounds(self, limits: Limits) -> None:
        """Check that no bound exceeds that of the first microbatch, by which the noise of the batch is scaled.

        The noise cannot follow a later microbatch, because whether there is one depends on the records.
        """
        for name, held in (self._held or {}).items():
            if (grown := limits.sensitivities[name]) > held:
                raise PrivacyError(
                    f"the sensitivity of {name} has grown from {held:.6g} to {grown:.6g} since the first microbatch of "
                    "this batch: change the mode and the settings of model, loss and bound between batches"
                )

    def _project_if_changed(self) -> None:
        """Project weights that the user loaded or changed since the last projection.

        Raises:
            PrivacyError: gradients of this batch are already pending.
        """
        if self._projected != weight_fingerprint(self.model):
            if self._pending:
                self._refuse_changed_weights()
            self.after_step()

    def _refuse_changed_weights(self) -> None:
        if self._projected != weight_fingerprint(self.model):
            raise PrivacyError(
                "the weights were changed after the model's last call and before optimizer.step(), but the bounds of a "
                "batch are those of the weights at its start. Change weights between batches"
            )
