"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from noisette import _check
from noisette.bounding.base import BoundedSum
from noisette.bounding.engines import BookKeeping, Clipping, Engine
from noisette.bounding.layouts import Layouts
from noisette.bounding.losses import check_independent, check_one_per_example
from noisette.errors import PrivacyRefusal
from noisette.rules import rewrites
from noisette.tape import Record, Tape

# Norms carry rounding errors; clipping to a hair below C keeps the true norm within C.
_SLACK = {torch.float64: 1e-12, torch.float32: 1e-6}
_SLACK_LOW_PRECISION = 1e-2


class PerExampleClip:
    """Bounds each example by scaling its gradient, over all trainable parameters jointly, to ``max_grad_norm``.

    The model stays yours: two hooks on its root record what a forward pass does, and ``close()`` removes them.

    Args:
        model: any module whose examples do not mix; its trainable parameters are those that require gradients now.
        max_grad_norm: the bound C, in the units of the gradient's Euclidean norm.
        engine: how the clipped sum is computed; every engine gives the same sum.

    Guarantee: adding or removing one example changes the sum by at most ``max_grad_norm``, provided that no operation
    of the model mixes examples (the preflight checks that).
    Source: Abadi et al. 2016, algorithm 1; Lee & Kifer 2020, eq. 2.

    Raises:
        ValueError: the bound is not a finite number above zero, or the model has nothing to train.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> clip = PerExampleClip(model, max_grad_norm=1.0)
    >>> clip.backward(model(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).squeeze(1))
    >>> [sum] = clip.take()
    >>> [round(value, 3) for value in sum.grads[0].flatten().tolist()]
    [0.6, 1.3]
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, *, engine: Engine | None = None) -> None:
        _check.positive(max_grad_norm=max_grad_norm)
        self.model = model
        self.max_grad_norm = float(max_grad_norm)
        self.engine: Engine = engine if engine is not None else BookKeeping()
        self._layouts = Layouts()
        self._tape = Tape(model, rewrites())
        self._pending: dict[str, Tensor] = {}
        self._checked_losses: set[str] = set()
        if not self._tape.parameters:
            self.close()
            raise ValueError("the model has no trainable parameter: every one has requires_grad=False")

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters, by name."""
        return self._tape.parameters

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of these examples to what is pending.

        Args:
            losses: one value per example, shape (b,), computed from calls of the model.

        Raises:
            PrivacyRefusal: a scalar, a tensor that is not one value per example, or (checked on the first batch) losses
                that look at each other's outputs.
            MissingRule: an operation uses a parameter in a way that has no rule.
        """
        record = self._tape.clear()
        check_one_per_example(losses)
        if losses.shape[0] == 0:
            return
        if not record.outputs:
            raise PrivacyRefusal(
                "the losses do not come from a call of the model: call the module itself (not its forward, not a part "
                "of it), with gradients enabled, before each backward"
            )
        self._check_kind_once(losses, record)
        record.examples = self._layouts.locate(losses, record, self.parameters)
        with _full_precision(losses.device.type):
            clipping = Clipping([list(self.parameters)], self._factors)
            sums = self.engine.clipped_sum(losses, record, self.parameters, clipping)
        # Pieces of one batch meet in double precision, so that their order and number hardly matter. Once that memory
        # is there nothing can fail, so a piece is added as a whole or not at all.
        held = {name: self._pending[name].double() for name in sums if name in self._pending}
        self._pending |= {name: held[name].add_(total) if name in held else total for name, total in sums.items()}

    def _check_kind_once(self, losses: Tensor, record: Record) -> None:
        """Each kind of loss, known by the operation it ends in, is tested on its first batch of two or more."""
        kind = losses.grad_fn.name() if losses.grad_fn is not None else ""
        if losses.shape[0] > 1 and kind not in self._checked_losses:
            check_independent(losses, record.outputs)
            if losses.isfinite().all():  # what is not a number proves nothing
                self._checked_losses.add(kind)

    def _factors(self, norms: Tensor) -> Tensor:
        """min(1, C / norm) for each example; not a number where the norm is not finite.

        Source: Lee & Kifer 2020, eq. 2.
        """
        target = self.max_grad_norm * (1 - _SLACK.get(norms.dtype, _SLACK_LOW_PRECISION))
        return torch.where(norms.isfinite(), (target / norms).clamp(max=1.0), torch.nan)

    def take(self) -> list[BoundedSum]:
        """The clipped sum that is pending, zeros for parameters no example reached; then start anew."""
        pending, self._pending = self._pending, {}
        params = tuple(self.parameters.values())
        grads = tuple(pending[name] if name in pending else torch.zeros_like(p) for name, p in self.parameters.items())
        return [BoundedSum(params, grads, self.max_grad_norm)]

    def close(self) -> None:
        """Remove the hooks; the model is as it was."""
        self._tape.close()


def _full_precision(device: str) -> AbstractContextManager[object]:
    """Norms and sums are computed outside of autocast."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
