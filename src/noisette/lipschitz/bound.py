"""Sensitivities without clipping: Lipschitz constants of the layers bound the gradient of every example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from noisette.core.backward import user_hooks_disabled
from noisette.core.clip import Accumulator, ClippingRule
from noisette.core.loss import Loss, Microbatch, OutsideTensors, shared_numbers_refused, vectorized_losses
from noisette.core.release import BoundedSum, Stateful
from noisette.core.state import ModelBuffers
from noisette.errors import PrivacyError
from noisette.lipschitz import NormBound, propagation
from noisette.lipschitz.loss_watch import LossWatch
from noisette.lipschitz.model_call import ModelCall, gradient_at_scores, recorded_calls
from noisette.lipschitz.noise_allocation import Allocation, OptimalAllocation
from noisette.lipschitz.project import project
from noisette.lipschitz.score_clipping import ScoreClipping
from noisette.lipschitz.weight_fingerprint import weight_fingerprint
from noisette.lipschitz.worst_case import check_stated_bounds
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
    one without privacy. The weights are projected back onto their sets after each step. Nothing is attached to the
    model between calls of :meth:`accumulate`.

    Args:
        model: layers of ``noisette.nn.lipschitz`` and torch modules that have a bound, with a ``BoundedInput`` in front
            of the first layer that trains.
        loss: a loss of ``noisette.nn.lipschitz``; gradients of the loss that is trained are scaled down to its
            Lipschitz constant.
        input_shape: shape of one example, without the batch axis; bounds depend on it, so others are refused.
        allocation: how the noise is divided among the parameters.
        logit_clipping: clips each example's gradient with respect to the scores below the Lipschitz constant of the
            loss: ``FlatClipping(C)``, or ``AdaptiveClip(C)``, which takes a share of the privacy budget.
        slack: relative increase of every sensitivity that covers rounding errors.

    Guarantee: adding or removing one example changes each sum by at most its bound, for every input and every label,
    provided that the bounds stated by the user's own modules hold. A short search for an example that exceeds them is
    made here.
    Source: Bethune et al. 2024, algorithms 1 and 2.

    Raises:
        ValueError: a number is outside its domain, or the model has no trainable parameter.
        PrivacyError: a module with trainable parameters has no bound, no module bounds a trainable parameter, or an
            example was found that exceeds the bounds that a module of the user's states.

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
        self._projected: tuple[object, ...] | None = None  # the fingerprint of the weights after their projection
        self._pending = Accumulator()
        self._outside = OutsideTensors()
        self._buffers = ModelBuffers(model)
        self._was_called = False  # a loss, so that it is known whether it draws numbers that its examples would share
        self._held: Mapping[str, float] | None = None  # sensitivities of the batch: those of its first microbatch
        self._project_if_changed()
        self.allocation.parts(self.sensitivities(), self._parameters)
        check_stated_bounds(model, self.input.shape, self.score_gradient_bound(), self.sensitivities())

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

    def before_first_batch(self) -> None:
        """Remember which tensors exist, so that a loss uses no other from outside."""
        self._outside.before_first_batch()

    def begin_batch(self, still_to_come: float = 1.0) -> None:
        """Project weights that were loaded or changed since the last step, and remember the buffers.

        Args:
            still_to_come: how many times the work so far is still to come; nothing is compiled here.
        """
        self._project_if_changed()
        self._buffers.begin_batch()

    def end_batch(self) -> list[str]:
        """Put back the buffers that were written since the batch began; give their names."""
        return self._buffers.end_batch()

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Add the gradients of these examples to the pending sums, from the loss of one example.

        The loss is vectorised by ``torch.func.vmap``, so no example can enter the loss of another one. Hooks that are
        registered on the model do not run, because the bounds are about its modules alone.

        Args:
            loss: called as ``loss(model, *batch, **keywords)`` with one example at a time, each tensor with a batch
                axis of length 1; returns a tensor with one value, computed from the scores of its last call of the
                model. See :class:`noisette.Loss`.
            batch: b examples; nested values in which each tensor has the examples on its first axis.
            public: tensors that the loss uses otherwise than as arguments, computed from no record but through weights
                that were released.
            keywords: more arguments of the loss, like ``batch``.

        Raises:
            PrivacyError: the arguments hold no tensor, or tensors of different lengths; the loss is not one value,
                cannot be vectorised, uses a tensor from outside that changes, does not depend on the scores of an
                example, or depends on a weight other than through them; or weights were changed or bounds have grown
                since the first microbatch.
        """
        self.add(loss, Microbatch(batch, keywords), tuple(public))

    def add(self, loss: Loss, microbatch: Microbatch, public: tuple[Tensor, ...]) -> None:
        """Add the gradients of the examples of a microbatch, as :meth:`accumulate`."""
        self._project_if_changed()
        if microbatch.count == 0:
            return
        losses, calls = self._losses(loss, microbatch, public)
        self._refuse_changed_weights()
        at_scores = gradient_at_scores(losses, calls, self._trained())
        limit, sensitivities = self.score_gradient_bound(), self.sensitivities()
        self._refuse_grown_bounds(sensitivities)
        at_scores, twice_counted = self._at_scores.clip(at_scores, losses, limit)
        self._pending.add(self._gradients(calls[-1], at_scores))
        self._held = self._held or sensitivities
        self._at_scores.add_count(twice_counted)

    def _losses(self, loss: Loss, batch: Microbatch, public: Iterable[Tensor]) -> tuple[Tensor, list[ModelCall]]:
        """The loss of each example, (b,), and the calls of the model that it has made."""
        self._outside.begin(public)
        watch = LossWatch([*self.model.parameters(), *self._buffers.values().values()], self._outside)
        drawn = nullcontext() if self._was_called else shared_numbers_refused()
        with drawn, recorded_calls(self.model, self.input.shape) as calls:
            losses = vectorized_losses(loss, self.model, batch, self._buffers, watch)
        self._outside.end()
        self._was_called = True
        return losses, calls

    def _gradients(self, call: ModelCall, at_scores: Tensor) -> dict[str, Tensor]:
        """The sum over the examples of each parameter's gradient, for these gradients at the scores of a call.

        Raises:
            PrivacyError: one is not finite.
        """
        trained = self._trained()
        with user_hooks_disabled(trained.values()):
            gradients = torch.autograd.grad([call.scores], list(trained.values()), [at_scores], allow_unused=True)
        found = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
        if not all(g.sum().isfinite() or g.isfinite().all() for g in found.values()):  # the sum is a fast first test
            raise PrivacyError(
                "a gradient is not finite though every input is bounded: the weights have overflowed. Lower the "
                "learning rate, or start from finite weights"
            )
        return found

    def _trained(self) -> dict[str, Tensor]:
        """The parameters, without those that were frozen since."""
        return {name: p for name, p in self._parameters.items() if p.requires_grad}

    def accumulate_nothing(self) -> None:
        """Nothing is exchanged in a microbatch of a model that is not sharded."""

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
        """Give a wrapper of the model its exchange back; the weights keep their last projected values."""
        self._unwrapped.close()

    def score_gradient_bound(self) -> float:
        """Bound on one example's gradient with respect to its scores.

        It is the loss's Lipschitz constant, or the logit clipping norm if that is smaller.
        """
        norm = propagation.forward(self.model, self.input).norm
        return min(self.loss.lipschitz(norm if norm < math.inf else None), self._at_scores.group.bound)

    def _refuse_grown_bounds(self, sensitivities: Mapping[str, float]) -> None:
        """Check that no bound exceeds that of the first microbatch, by which the noise of the batch is scaled.

        The noise cannot follow a later microbatch, because whether there is one depends on the records.
        """
        for name, held in (self._held or {}).items():
            if (grown := sensitivities[name]) > held:
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
                "the weights were changed within a batch, but the bounds of a batch are those of the weights at its "
                "start. Change weights between batches"
            )
