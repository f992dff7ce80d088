"""A boundary at a model's outputs, for loops that compute the loss of a batch and call ``loss.backward()`` themselves.

When the model is called, it is vectorised over the rows of its arguments, each a batch of one, and returns the rows
joined and cut off from the weights. The gradient that ``backward`` brings there becomes clipped gradients of the rows.

Guarantee: the model computes a row from that row and the weights alone, and the gradient of a record, over all calls
for it, is clipped before it is added. So a record moves the sum by at most the bound, provided that the loop keeps
records apart, which cannot be seen from here:

- behind the model, the gradient at a row's outputs depends on that row alone. It does where the loss is a mean or a sum
  of the rows' losses, and not with normalisation over the batch, class weights counted in it, or contrastive losses;
- in front of the model, a row holds one record, which is the same row of the other calls for these records.

Source: Abadi et al. 2016, algorithm 1, lines 6 and 7, by the chain rule at the model's outputs.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from noisette.clipping.engines import RecordedCall, Returned
from noisette.core.batches import Batch
from noisette.core.loss import Microbatch
from noisette.core.trees import leaves, tensors, with_leaves
from noisette.errors import PrivacyError
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun

WHOLE = 2**31  # examples of a microbatch: the whole batch


class Boundary:
    """Calls the model for a loop that computes losses itself, and keeps the gradients that arrive at its outputs.

    A batch may be taken in pieces, each with its calls of the model and its backward passes. A piece ends when the
    model is called again after them, and the last one when the optimizer steps: so where a call takes the whole batch,
    or the rest of it, all calls and backward passes until the step are for the same records, and add up before
    clipping. The ``optimizer`` is not yet of a run; ``mean`` says that the loss is a mean over rows, and not their sum.
    """

    def __init__(self, clip: PerExampleClip, optimizer: Optimizer, *, mean: bool) -> None:
        self.clip = clip
        self._mean = mean
        self.run: PrivateRun | None = None  # once it has begun
        self._batch = 0
        self._left = 0  # records of the batch that no piece before this one has held
        self._piece: list[RecordedCall] = []  # the calls at which gradients have arrived
        boundary = weakref.ref(self)  # the optimizer may outlive the loop

        def before_step(*_: object) -> None:
            if (alive := boundary()) is not None:
                alive.end_records()

        uncompiled: Any = torch.compiler.disable(before_step)
        self._hook = optimizer.register_step_pre_hook(uncompiled)

    def pieces(self, batch: Batch, optimizer: Any, most: int) -> Iterator[Any]:
        """The batch in pieces of at most so many records and of one bucket; ``optimizer.step()`` waits for the last."""
        left = len(batch.indices)
        if not left:  # the release is noise alone, and is made all the same
            self.begin_records(0)
            optimizer.step()
            optimizer.zero_grad()
            return
        for piece in batch.microbatches(most):
            count = batch.current or 0
            left -= count
            self.begin_records(count)
            if not left:
                yield piece
                return
            with _steps_left_out(optimizer):
                yield piece
            self.end_records()

    def begin_records(self, records: int) -> None:
        """So many records of the batch come next: all of it, or a piece that the loop takes by itself."""
        self._batch, self._left, self._piece = self._batch + 1, records, []

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these rows; a number of each row, such as its loss, as their mean or sum.

        Without gradients, in ``eval`` mode and after the last step it is called as it is. Once all records of the batch
        are in a step, what requires gradients by itself, such as the images of a generator, gets them through the
        released weights.
        """
        run, model = self.run, self.clip.model
        if run is None or not run.steps_left or not model.training or not torch.is_grad_enabled():
            return model(*args, **kwargs)
        if not self._left and any(tensor.requires_grad for tensor in tensors((args, kwargs))):
            released = {name: p.detach() for name, p in model.named_parameters()}
            return torch.func.functional_call(model, released, args, kwargs)
        if self._piece and self._piece[0].count < self._left:
            self._end_piece(run)
        run.keep_seed_secret()
        found = self.clip.record_rows(Microbatch(args, kwargs))
        if not found.values:
            return found.output
        trigger = torch.zeros((), requires_grad=True)  # where the graph of the loss ends
        outputs = _Outputs.apply(trigger, self, self._batch, found)
        new = {
            id(value): output if rows[0].dim() else output.mean() if self._mean else output.sum()
            for value, output, rows in zip(found.values, outputs, found.call.outputs, strict=True)
        }
        return with_leaves(found.output, [new.get(id(leaf), leaf) for leaf in leaves(found.output)])

    def close(self) -> None:
        self._hook.remove()
        self.run = None

    def arrived(self, call: RecordedCall, batch: int, gradients: Sequence[Tensor | None]) -> None:
        """A backward pass has brought these gradients to the outputs of a call, of which each record has a row."""
        if batch != self._batch or not call.outputs:
            raise PrivacyError(
                "backward has reached a call of the model whose records were bounded before, in an earlier batch or "
                "piece of it: compute all losses of the same records before the model is called for others"
            )
        if call.count > self._left or (self._piece and call.count != self._piece[0].count):
            others = f", after a call with {self._piece[0].count} rows" if self._piece else ""
            raise PrivacyError(
                f"backward has reached a call of the model with {call.count} rows, where {self._left} records of the "
                f"batch are left{others}: each record belongs to its step once, and is the same row of each call. Add "
                "up the losses of the same records before loss.backward(); give several views of a record on a second "
                "axis, or call the model once for each"
            )
        for k, gradient in enumerate(gradients):
            if gradient is not None:
                before = call.gradients.get(k)
                call.gradients[k] = gradient.detach() if before is None else before + gradient.detach()
        if call not in self._piece:
            self._piece.append(call)

    def _end_piece(self, run: PrivateRun) -> None:
        piece, self._piece = self._piece, []
        if piece:
            self._left -= piece[0].count
            run.accumulate_recorded(piece, piece[0].count if self._mean else 1)

    def end_records(self) -> None:
        """The loop goes on to others, or to the step: a PrivacyError if a record has brought no gradient."""
        if self.run is None:
            return
        self._end_piece(self.run)
        if self._left:
            raise PrivacyError(
                f"backward passes have brought no gradient of {self._left} records of this batch: each record is a row "
                "of a call of the model itself, not of a part of it, in training mode; where two parts of a batch "
                "enter one loss, call the model once, with both"
            )


@contextmanager
def _steps_left_out(optimizer: Any) -> Iterator[None]:
    """Within it ``optimizer.step()`` does nothing."""
    before = {name: own for name, own in vars(optimizer).items() if name == "step"}
    rates = [group.get("lr") for group in optimizer.param_groups]
    optimizer.step = lambda *_: None
    try:
        yield
    finally:
        del optimizer.step
        vars(optimizer).update(before)
    if rates != [group.get("lr") for group in optimizer.param_groups]:
        raise PrivacyError(
            "the learning rate was changed between two pieces of a batch, whose number is private: step the scheduler "
            "after each epoch, or take each batch whole, of PaddedBuckets with one edge"
        )


class _Outputs(torch.autograd.Function):
    """The values that a call returned; the gradients that arrive at them go to the boundary."""

    @staticmethod
    def forward(ctx: Any, trigger: Tensor, boundary: Boundary, batch: int, returned: Returned) -> tuple[Tensor, ...]:
        ctx.arrived = partial(boundary.arrived, returned.call, batch)  # not the values, which will hold this node
        ctx.set_materialize_grads(False)
        return tuple(returned.values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.arrived(gradients)
        return None, None, None, None
