"""Per-example gradients where the loop itself computes the loss of a batch: a boundary at the model's outputs.

When the model is called, it is vectorised over the rows of its arguments: each row is computed as a batch of one. What it
returns is the rows joined, cut off from the weights. The gradient that arrives there in ``loss.backward()`` is kept; later
it is turned into clipped gradients of the rows.

Guarantee: the model computes a row from that row and the weights alone, and a row's gradient over all calls for the same
records is clipped before it is added. So a record moves the sum by at most the bound, provided that

- the criterion, and all else behind the model, computes the gradient at a row's outputs from that row alone: a mean of
  losses does, a normalisation over the batch or weights of the classes in it do not;
- row i of a call holds one record, which is row i of the other calls for these records, and what is computed in front of
  the model keeps rows apart as well (no mixing of records).

Neither can be seen from here. That no record comes twice is counted, not compared.
Source: Abadi et al. 2016, algorithm 1, lines 6 and 7, by the chain rule at the model's outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.stateless import _reparametrize_module

from noisette._internal.tensor_tree import leaves, with_leaves
from noisette.clipping.one_by_one import OneByOneWarning, says_one_by_one
from noisette.core import vmap as internals
from noisette.core.backward import LocatedRecording, search, user_hooks_disabled
from noisette.core.clip import ClippedSum, Clipping, Engine, Sums, Weights, group_norms
from noisette.core.forms import Dense, Examples
from noisette.core.recording import Recording
from noisette.core.trace import Microbatch, NotVectorizedError, Tape, VectorizedRecorder, WrittenIntoError, explained
from noisette.errors import PrivacyError
from noisette.gradients.outside_tensors import OutsideTensors

if TYPE_CHECKING:
    from noisette.clipping.per_example import PerExampleClip


@dataclass(eq=False)
class RecordedCall:
    """A call of the model with b rows, and the gradients that have arrived at its outputs so far."""

    count: int  # b
    returned: Any  # what the model returned, with tensors of all rows
    outputs: list[Sequence[Tensor]]  # at which a gradient can arrive: by row, each (1, ...) or ()
    values: list[Tensor]  # the same joined, (b, ...), without a graph
    recording: Recording | None  # None where the rows were computed one after the other
    gradients: list[Tensor | None] = field(default_factory=list)  # at each of the outputs, like the values

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of one backward pass."""
        before = self.gradients or [None] * len(self.outputs)
        pairs = zip(before, gradients, strict=True)
        self.gradients = [new if old is None else old if new is None else old + new for old, new in pairs]

    def used(self) -> list[tuple[Sequence[Tensor], Tensor]]:
        """The outputs at which a gradient has arrived, with it."""
        pairs = zip(self.outputs, self.gradients, strict=True)
        return [(output, gradient) for output, gradient in pairs if gradient is not None]


def record_rows(tape: Tape, outside: OutsideTensors, batch: Microbatch, *, one_by_one: bool) -> RecordedCall:
    """Call the model with each row of its arguments as a batch of one.

    Args:
        tape: of the model.
        outside: the tensors from outside that the model used before.
        batch: the arguments of the model.
        one_by_one: whether it is known that the model cannot be vectorised.

    Raises:
        PrivacyError: an argument has no rows or a gradient of its own, or an output has no rows.
    """
    _check_arguments(batch)
    if one_by_one:
        return _each_alone(tape, batch)
    own_for_each = set[int]()
    while True:
        try:
            return _vectorized(tape, outside, batch, own_for_each)
        except WrittenIntoError as written:
            own_for_each.add(written.factory)
        except NotVectorizedError as error:
            warnings.warn(says_one_by_one(error.cause), OneByOneWarning, stacklevel=6)
            return _each_alone(tape, batch)


def _vectorized(tape: Tape, outside: OutsideTensors, batch: Microbatch, own_for_each: set[int]) -> RecordedCall:
    """All rows at once, recorded."""
    outside.begin(())
    tape.pop()
    make = partial(VectorizedRecorder, count=batch.count, outside=outside, own_for_each=own_for_each)
    try:
        with (
            _copies_of_buffers(tape.root),
            internals.as_if_compiled(),
            warnings.catch_warnings(),
            tape.recording_by(make) as recorder,
            internals.vmap_level(batch.count) as level,
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
            rows = [internals.batched(tensor.unsqueeze(1), level) for tensor in batch.tensors]
            recorder.begin(level, rows)
            one = batch.with_tensors(rows)
            output = tape.root(*one.args, **one.kwargs)
            physical = [
                internals.physical(leaf) if isinstance(leaf, Tensor) and internals.is_wrapped(leaf) else leaf
                for leaf in leaves(output)
            ]
            found = [isinstance(leaf, Tensor) and internals.is_wrapped(leaf) for leaf in leaves(output)]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        if isinstance(error, PrivacyError) or (said := explained(error, tape.root)) is None:
            raise
        raise said from error
    outside.end()
    recorder.end()
    return _call(batch.count, output, physical, found, tape.pop())


def _each_alone(tape: Tape, batch: Microbatch) -> RecordedCall:
    """One row after the other, by plain autograd; each begins with the model's buffers as they are."""
    rows = []
    with tape.silent():
        for k in range(batch.count):
            one = batch.with_tensors([tensor[k : k + 1] for tensor in batch.tensors])
            with _copies_of_buffers(tape.root):
                rows.append(tape.root(*one.args, **one.kwargs))
    columns = zip(*[leaves(row) for row in rows], strict=True)
    joined = [list(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
    return _call(batch.count, rows[0], joined, [isinstance(column, list) for column in joined], None)


def _copies_of_buffers(model: nn.Module) -> Any:
    """Within it the model computes with copies of its buffers: what a call writes there is dropped."""
    return _reparametrize_module(model, {name: buffer.clone() for name, buffer in model.named_buffers()})


def _check_arguments(batch: Microbatch) -> None:
    """Check that the rows of the arguments are all that the model is to be differentiated for."""
    shapes = [tuple(tensor.shape) for tensor in batch.tensors]
    if not shapes or not all(shape[:1] == shapes[0][:1] != () for shape in shapes):
        raise PrivacyError(
            f"expected the model to be called with tensors that have one row for each record, got the shapes {shapes}; "
            "make constants buffers of the model, or numbers"
        )
    if any(tensor.requires_grad for tensor in batch.tensors):
        raise PrivacyError(
            "the private model was called with a tensor that requires gradients, and none flow through it: give it "
            "tensor.detach() where none are needed, call model.eval() first where gradients of inputs are, or make what "
            "computes the tensor a part of the model"
        )


def _call(
    count: int, output: Any, columns: list[Any], of_rows: list[bool], recording: Recording | None
) -> RecordedCall:
    """The call that returned these columns of rows; an entry without rows is kept as it is."""
    outputs, values, returned = [], [], []
    for column, has_rows in zip(columns, of_rows, strict=True):
        if not has_rows:
            if isinstance(column, Tensor) and column.requires_grad:
                raise PrivacyError(
                    f"the model returns a tensor of shape {tuple(column.shape)} that depends on its weights and on no "
                    "record, and such a gradient cannot be clipped; leave it out (weight decay belongs to the optimizer)"
                )
            returned.append(column)
            continue
        shape = tuple(column[0].shape)
        if shape and shape[0] != 1:
            raise PrivacyError(
                f"the model returns a tensor of shape {shape} for a record, where the first axis has to be of the "
                "records, of length 1: transpose it in the model, as by batch_first=True"
            )
        value = column.detach() if isinstance(column, Tensor) else torch.stack([row.detach() for row in column])
        value = value.flatten(0, 1).clone() if shape else value.clone()
        if column[0].requires_grad:
            outputs.append(column)
            values.append(value)
        returned.append(value)
    return RecordedCall(count, with_leaves(output, returned), outputs, values, recording)


def clipped_sum_of(
    calls: Sequence[RecordedCall], scale: float, engine: Engine, parameters: Mapping[str, Tensor], clipping: Clipping
) -> ClippedSum:
    """The clipped sum over the rows of calls for the same records; it takes the calls' graphs.

    Args:
        calls: with the gradients that have arrived at their outputs.
        scale: what these are multiplied with: the number of rows where the loss is a mean over them.
        engine: computes the sum, where all rows were computed at once.
        parameters: the trainable ones, by name.
        clipping: how gradients are clipped.
    """
    recordings = [call.recording for call in calls if call.recording is not None]
    if len(recordings) == len(calls):
        uses = tuple([use for recording in recordings for use in recording.uses])
        derived = {key: weight for recording in recordings for key, weight in recording.derived.items()}
        with torch.enable_grad():
            parts = [
                (y * g.reshape(y.shape)).reshape(call.count, -1).sum(1, dtype=torch.float64)
                for call in calls
                for y, g in call.used()
                if isinstance(y, Tensor)
            ]
            losses = torch.stack(parts).sum(0) * scale
        graph = search(losses, uses, parameters)
        if not graph.uncovered:
            joint = replace(recordings[0], uses=uses, derived=derived)
            forward = [LocatedRecording(losses, joint, graph, [Examples(calls[0].count)] * len(uses))]
            del joint, uses, recordings, losses, parts
            for call in calls:
                call.outputs, call.recording = [], None
            return engine.clipped_sum(forward.pop(), parameters, clipping)
    return _row_after_row(calls, scale, parameters, clipping)


def _row_after_row(
    calls: Sequence[RecordedCall], scale: float, parameters: Mapping[str, Tensor], clipping: Clipping
) -> ClippedSum:
    """The same by plain autograd for each row."""
    total: Sums = {}
    norms: list[Tensor] = []
    for k in range(calls[0].count):
        pairs = [(output[k], gradient[k]) for call in calls for output, gradient in call.used()]
        with user_hooks_disabled(parameters.values()):
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                list(parameters.values()),
                [gradient.reshape(output.shape) * scale for output, gradient in pairs],
                allow_unused=True,
                retain_graph=True,
            )
        gradients = {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
        forms = {name: Dense(gradient.unsqueeze(0)) for name, gradient in gradients.items()}
        squared = {name: form.squared_norms() for name, form in forms.items()}
        norms.append(group_norms(squared, clipping.groups, pairs[0][0].new_zeros(1)))
        weights = Weights.of(clipping, norms[-1])
        for name, form in forms.items():
            clipped = weights.sum_of(name, form)
            total[name] = total[name].add_(clipped) if name in total else clipped.double()
    for call in calls:
        call.outputs, call.recording = [], None
    return ClippedSum(total, torch.cat(norms, 1))


class _Outputs(torch.autograd.Function):
    """The values that a call returned; the gradients that arrive at them go to the boundary."""

    @staticmethod
    def forward(ctx: Any, trigger: Tensor, boundary: Boundary, call: RecordedCall, batch: int) -> tuple[Tensor, ...]:
        ctx.arrived = partial(boundary.arrived, call, batch)
        ctx.set_materialize_grads(False)
        return tuple(call.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.arrived(gradients)
        return None, None, None, None


class Boundary:
    """Calls the model for a loop that computes losses by itself, and keeps the gradients that arrive at its outputs.

    A batch may be taken in pieces, each with its calls of the model and its backward passes. A piece is complete when the
    model is called again after them, or with the last piece when the optimizer steps. Calls for the same records belong
    to one piece, and their gradients are added up before a record is clipped: where a call takes the whole batch, or its
    last piece, all calls and backward passes do until the step.

    Args:
        clip: of the model.
        mean: whether the loss is a mean over rows, whose gradients are those of single rows over their number.
    """

    def __init__(self, clip: PerExampleClip, *, mean: bool) -> None:
        self._clip = clip
        self._mean = mean
        self._batch = 0
        self._left = 0  # records of the batch that no complete piece has held
        self._piece: list[RecordedCall] = []  # calls at which gradients have arrived

    def begin_batch(self, records: int) -> None:
        """The loop gets a batch of so many records."""
        self._batch, self._left, self._piece = self._batch + 1, records, []

    def ends_piece(self) -> bool:
        """Whether a call of the model now begins another piece of the batch."""
        return bool(self._piece) and self._piece[0].count < self._left

    def take(self) -> tuple[list[RecordedCall], float]:
        """The calls of the piece that is complete, and what their gradients are to be multiplied with."""
        piece, self._piece = self._piece, []
        count = piece[0].count if piece else 0
        self._left -= count
        return piece, count if self._mean else 1

    def check_complete(self) -> None:
        """Check that all records of the batch were in complete pieces.

        Raises:
            PrivacyError: some were not.
        """
        if self._left:
            raise PrivacyError(
                f"backward passes have brought no gradient of {self._left} records of this batch: each record is a row "
                "of a call of the model in its step; where two parts of a batch enter one loss, call the model once, "
                "with both"
            )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these rows.

        Raises:
            PrivacyError: as by :func:`record_rows`.
        """
        call = self._clip.record_rows(Microbatch(args, kwargs))
        if not call.values:
            return call.returned
        trigger = torch.zeros((), requires_grad=True)  # where the graph of the loss ends
        outputs = _Outputs.apply(trigger, self, call, self._batch)
        new = {
            id(value): output if rows[0].dim() else output.mean() if self._mean else output.sum()
            for value, output, rows in zip(call.values, outputs, call.outputs, strict=True)
        }
        return with_leaves(call.returned, [new.get(id(leaf), leaf) for leaf in leaves(call.returned)])

    def arrived(self, call: RecordedCall, batch: int, gradients: Sequence[Tensor | None]) -> None:
        """A backward pass has brought these gradients to the outputs of a call.

        Raises:
            PrivacyError: the call is of an earlier batch or piece, or its rows are not the records of this piece.
        """
        if batch != self._batch or not call.outputs:
            raise PrivacyError(
                "backward has reached a call of the model whose records were bounded before, in an earlier batch or "
                "piece of it: compute losses of the same records before the model is called for others, and no loss of "
                "records of an earlier batch"
            )
        if call.count > self._left or (self._piece and call.count != self._piece[0].count):
            others = "" if not self._piece else f", after a call with {self._piece[0].count} of them"
            raise PrivacyError(
                f"backward has reached a call of the model with {call.count} rows, where {self._left} records of the "
                f"batch are left{others}: each record is a row of each call, in the same order, and belongs to its step "
                "once. Add up the losses of the same records before loss.backward(); put several views of a record on "
                "a second axis, or call the model once for each"
            )
        call.add(gradients)
        if all(call is not other for other in self._piece):
            self._piece.append(call)
