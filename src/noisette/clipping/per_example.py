"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.clipping.accumulator import Pending
from noisette.clipping.clipping_rules import ClippingRule, FlatClipping, Group, factors_within
from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.loss_checks import check_independent, check_one_per_example
from noisette.clipping.norms import Clipping, Engine
from noisette.clipping.quantile_count import count_within_norm, twice_the_count
from noisette.errors import PrivacyError
from noisette.gradients.autograd_graph import follow
from noisette.gradients.batch_axis import BatchAxisFinder
from noisette.gradients.rules import rewrites
from noisette.gradients.tape import Record, Tape
from noisette.mechanisms.bounded_sum import BoundedSum, Stateful


class PerExampleClip:
    """Bounds each example by scaling its gradient, over all trainable parameters jointly unless ``clipping`` says else.

    The model stays yours: two hooks on its root record what a forward pass does, and ``close()`` removes them.

    Args:
        model: any module whose examples do not mix; its trainable parameters are those that require gradients now.
        max_grad_norm: the bound C, in the units of the gradient's Euclidean norm; as ``clipping=FlatClipping(C)``.
        clipping: instead of ``max_grad_norm``: a rule, such as ``PerLayerClipping(1.0)`` or ``AdaptiveClip(0.1)``.
        engine: how the clipped sum is computed; every engine gives the same sum.

    Guarantee: adding or removing one example changes each sum by at most its bound (with ``max_grad_norm`` there is
    one, of bound C), provided that no operation of the model mixes examples (the preflight checks that).
    Source: Abadi et al. 2016, algorithm 1; Lee & Kifer 2020, eq. 2.

    Raises:
        ValueError: the bound is not a finite number above zero, the rule does not fit the parameters, or the model has
            nothing to train.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> clip = PerExampleClip(model, max_grad_norm=1.0)
    >>> clip.backward(model(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).squeeze(1))
    >>> [sum] = clip.pop_sums()
    >>> [round(value, 3) for value in sum.grads[0].flatten().tolist()]
    [0.6, 1.3]
    """

    def __init__(
        self,
        model: nn.Module,
        max_grad_norm: float | None = None,
        *,
        clipping: ClippingRule | None = None,
        engine: Engine | None = None,
    ) -> None:
        checks.exactly_one(max_grad_norm=max_grad_norm, clipping=clipping)
        if clipping is None:
            assert max_grad_norm is not None
            clipping = FlatClipping(max_grad_norm)
        self.model = model
        self.clipping: ClippingRule = clipping
        self.engine: Engine = engine if engine is not None else BookKeeping()
        self._layouts = BatchAxisFinder()
        self._tape = Tape(model, rewrites())
        self._groups: list[Group] | None = None  # of the batch under way: all its pieces have the same bounds
        self._pending = Pending()
        self._counted: dict[int, Tensor] = {}  # by group: twice the count
        self._checked_losses: set[str] = set()
        try:
            if not self.parameters:
                raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
            self._fresh_groups()
        except ValueError:
            self.close()
            raise

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters, by name."""
        return self._tape.parameters

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of these examples to what is pending.

        Args:
            losses: one value per example, shape (b,), computed from calls of the model.

        Raises:
            PrivacyError: a scalar, a tensor that is not one value per example, or (checked on the first batch) losses
                that look at each other's outputs.
            MissingRuleError: an operation uses a parameter in a way that has no rule.
        """
        record = self._tape.clear()
        check_one_per_example(losses)
        if losses.shape[0] == 0:
            return
        if not record.outputs:
            raise PrivacyError(
                "the losses do not come from a call of the model: call the module itself (not its forward, not a part "
                "of it), with gradients enabled, before each backward"
            )
        self._check_kind_once(losses, record)
        record.paths = follow(losses, record, self.parameters)
        record.examples = self._layouts.locate(losses, record)
        with _full_precision(losses.device.type):
            clipping = Clipping([group.names for group in self._batch_groups()], self._factors)
            clipped = self.engine.clipped_sum(losses, record, self.parameters, clipping)
        counts = {
            k: self._counted.get(k, 0) + twice_the_count(clipped.norms[k], group.bound)
            for k, group in enumerate(self._batch_groups())
            if group.count is not None
        }
        self._pending.add(clipped.sums)
        self._counted |= counts

    def _check_kind_once(self, losses: Tensor, record: Record) -> None:
        """Each kind of loss, known by the operation it ends in, is tested on its first batch of two or more."""
        kind = losses.grad_fn.name() if losses.grad_fn is not None else ""
        if losses.shape[0] > 1 and kind not in self._checked_losses:
            check_independent(losses, record.outputs)
            if losses.isfinite().all():  # what is not a number proves nothing
                self._checked_losses.add(kind)

    def _factors(self, norms: Tensor) -> Tensor:
        """What the rule multiplies each gradient with, shape (groups, b), within the bounds of this batch."""
        return factors_within(self._batch_groups(), norms)

    def _batch_groups(self) -> list[Group]:
        if self._groups is None:
            self._groups = self._fresh_groups()
        return self._groups

    def _fresh_groups(self) -> list[Group]:
        groups = self.clipping.groups(list(self.parameters))
        if sorted(name for group in groups for name in group.names) != sorted(self.parameters):
            raise ValueError(
                f"{type(self.clipping).__name__} does not put every trainable parameter in exactly one group"
            )
        return groups

    def pop_sums(self) -> list[BoundedSum]:
        """The clipped sum of each group that is pending, zeros where no example reached; then start anew.

        A group that counts has its count beside it, as a sum of its own.
        """
        groups, pending, counted = self._batch_groups(), self._pending.pop_sums(self.parameters), self._counted
        self._groups, self._counted = None, {}
        sums: list[BoundedSum] = []
        for k, group in enumerate(groups):
            params = tuple(self.parameters[name] for name in group.names)
            sums.append(BoundedSum(params, tuple(pending[name] for name in group.names), group.bound))
            if group.count is not None:
                sums.append(count_within_norm(group.count, counted.get(k)))
        return sums

    def state(self) -> Mapping[str, float]:
        """What the clipping rule has learned from released values; empty for one that learns nothing."""
        return self.clipping.state() if isinstance(self.clipping, Stateful) else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from what :meth:`state` gave, with a clipping rule like the one that it was taken from."""
        if isinstance(self.clipping, Stateful):
            self.clipping.restore(state)

    def after_step(self) -> None:
        """Weights may go where they like."""

    def close(self) -> None:
        """Remove the hooks; the model is as it was."""
        self._tape.close()


def _full_precision(device: str) -> AbstractContextManager[object]:
    """Norms and sums are computed outside of autocast."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
