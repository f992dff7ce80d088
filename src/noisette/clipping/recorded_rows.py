"""Calls of a model whose rows are computed apart, and the clipped sum once gradients have arrived at their outputs.

The model is called with each row of its arguments as a batch of one, vectorised, and returns the rows joined, cut off
from the weights. Given the gradient at a row's outputs, the chain rule gives that of the row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisette.clipping.one_by_one import OneByOneWarning, says_one_by_one
from noisette.core import loss as internals
from noisette.core.backward import ForwardPass, search, user_hooks_disabled
from noisette.core.clip import ClippedSum, Clipping, Engine, clipped_in_parts
from noisette.core.forms import DerivedWeight
from noisette.core.loss import Microbatch, NotVectorizedError, OutsideTensors, explained
from noisette.core.state import ModelBuffers
from noisette.core.trace import Recording, Use, WrittenIntoError, new_recorder
from noisette.core.trees import leaves, with_leaves
from noisette.errors import PrivacyError

Rows = Tensor | list[Tensor]  # of an output, each (1, ...) or ()
Recorded = tuple[list[Use], Mapping[int, DerivedWeight]]  # the uses of weights, and the weights derived from others


@dataclass(eq=False)
class RecordedCall:
    """A call of the model with b rows, and the gradients that have arrived at its outputs so far."""

    count: int  # b
    outputs: list[Rows]  # at which a gradient can arrive
    recording: Recorded | None  # None where the rows were computed one after the other
    gradients: dict[int, Tensor] = field(default_factory=dict)  # by number of the output, each (b, ...)

    def used(self) -> list[tuple[Rows, Tensor]]:
        """The outputs at which a gradient has arrived, with it."""
        return [(self.outputs[k], gradient) for k, gradient in self.gradients.items()]


@dataclass(frozen=True)
class Returned:
    """What a call of the model has returned, without a graph."""

    call: RecordedCall
    output: Any  # as the model returned it, with tensors of all rows
    values: list[Tensor]  # those among them at which a gradient can arrive, each (b, ...)


def record_rows(
    model: nn.Module,
    batch: Microbatch,
    parameters: Mapping[str, Tensor],
    buffers: ModelBuffers,
    outside: OutsideTensors,
    *,
    one_by_one: bool,
) -> Returned:
    """Call the model with each row of its arguments as a batch of one.

    Args:
        model: the model.
        batch: its arguments.
        parameters: those that are trained, by name.
        buffers: of the model, which computes with copies of them.
        outside: the tensors from outside that the model used before.
        one_by_one: whether it is known that the model cannot be vectorised.

    Raises:
        PrivacyError: an argument or an output has no rows, an argument has a gradient, or the model refuses ``vmap``
            for a reason that one row at a time would not remove.
    """
    shapes = [tuple(tensor.shape) for tensor in batch.tensors]
    if not shapes or not all(shape[:1] == shapes[0][:1] != () for shape in shapes):
        raise PrivacyError(
            f"expected the model to be called with tensors that have one row for each record, got the shapes {shapes}; "
            "make constants buffers of the model, or numbers"
        )
    if any(tensor.requires_grad for tensor in batch.tensors):
        raise PrivacyError(
            "the private model was called with a tensor that requires gradients, and none flow through it: give it "
            "tensor.detach() where none are needed, call model.eval() first where those of inputs are, or make what "
            "computes the tensor a part of the model"
        )
    own_for_each = set[int]()
    while not one_by_one:
        try:
            return _at_once(model, batch, parameters, buffers, outside, own_for_each)
        except WrittenIntoError as written:
            own_for_each.add(written.number)
        except NotVectorizedError as error:
            warnings.warn(says_one_by_one(error.cause), OneByOneWarning, stacklevel=7)
            one_by_one = True
    return _one_after_the_other(model, batch, buffers)


def _at_once(
    model: nn.Module,
    batch: Microbatch,
    parameters: Mapping[str, Tensor],
    buffers: ModelBuffers,
    outside: OutsideTensors,
    own_for_each: set[int],
) -> Returned:
    """All rows by one call inside of ``vmap``, recorded."""
    outside.begin(())
    recorder = new_recorder(model, parameters, buffers, batch.count, outside, own_for_each)
    try:
        with (
            internals.as_if_compiled(),
            warnings.catch_warnings(),
            recorder,
            internals.vmap_level(batch.count) as level,
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
            rows = [internals.batched(tensor.unsqueeze(1), level) for tensor in batch.tensors]
            recorder.begin(level, rows)
            one = batch.with_tensors(rows)
            with buffers.lent(recorder.buffer):
                output = model(*one.args, **one.kwargs)
            columns = [internals.physical(leaf) if _has_rows(leaf) else None for leaf in leaves(output)]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        if isinstance(error, PrivacyError) or (said := explained(error, model)) is None:
            raise
        raise said from error
    outside.end()
    uses, derived = recorder.finish()
    return _returned(batch.count, output, columns, (uses, derived))


def _has_rows(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and internals.is_wrapped(leaf)


def _one_after_the_other(model: nn.Module, batch: Microbatch, buffers: ModelBuffers) -> Returned:
    """One call for each row, by plain autograd."""
    outputs = []
    for k in range(batch.count):
        one = batch.of_row(k)
        with buffers.lent():
            outputs.append(model(*one.args, **one.kwargs))
    entries = zip(*map(leaves, outputs), strict=True)
    columns = [list(entry) if isinstance(entry[0], Tensor) else None for entry in entries]
    return _returned(batch.count, outputs[0], columns, None)


def _returned(count: int, output: Any, columns: Sequence[Rows | None], recording: Recorded | None) -> Returned:
    """What was returned, given the rows of each entry; one without rows is kept as it is."""
    outputs, values, entries = [], [], []
    for leaf, rows in zip(leaves(output), columns, strict=True):
        if rows is None:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                raise PrivacyError(
                    f"the model returns a tensor of shape {tuple(leaf.shape)} that depends on weights and on no "
                    "record, and its gradient cannot be clipped; leave it out (weight decay belongs to the optimizer)"
                )
            entries.append(leaf)
            continue
        shape = tuple(rows[0].shape)
        if shape and shape[0] != 1:
            raise PrivacyError(
                f"the model returns a tensor of shape {shape} for a record, where the first axis has to be that of the "
                "records, of length 1: transpose it in the model, as by batch_first=True"
            )
        if isinstance(rows, Tensor):
            value = (rows.flatten(0, 1) if shape else rows).detach().clone()
        else:
            value = (torch.cat(rows) if shape else torch.stack(rows)).detach()
        entries.append(value)
        if rows[0].requires_grad:
            outputs.append(rows)
            values.append(value)
    return Returned(RecordedCall(count, outputs, recording), with_leaves(output, entries), values)


def clipped_sum_of(
    calls: Sequence[RecordedCall], scale: float, engine: Engine, parameters: Mapping[str, Tensor], clipping: Clipping
) -> ClippedSum:
    """The clipped sum over the rows of calls for the same records; the graphs of the calls are used up.

    Args:
        calls: with the gradients that have arrived at their outputs.
        scale: what these are multiplied with: the number of rows where the loss is a mean over them.
        engine: computes the sum, where all rows were computed at once.
        parameters: the trainable ones, by name.
        clipping: how gradients are clipped.

    Guarantee: a row's gradient over all calls is clipped before it is added; where the gradient at a row's outputs
    depends on that row alone, adding or removing a row changes each sum by at most its bound.
    Source: Abadi et al. 2016, algorithm 1, lines 6 and 7.
    """
    used = [pair for call in calls for pair in call.used()]
    recordings = [call.recording for call in calls if call.recording is not None]
    for call in calls:
        call.outputs, call.recording = [], None
    if len(recordings) == len(calls):
        with torch.enable_grad():
            products = [y * g.reshape(y.shape) for y, g in used if isinstance(y, Tensor)]
            terms = [product.reshape(len(product), -1).sum(1, dtype=torch.float64) for product in products]
            losses = torch.stack(terms).sum(0) * scale
        uses = [use for of_call, _ in recordings for use in of_call]
        derived = {key: weight for _, of_call in recordings for key, weight in of_call.items()}
        graph = search(losses, uses, parameters)
        if not graph.uncovered:  # all weights were used by operations that can be seen
            del used, recordings, products, terms
            return engine.clipped_sum(ForwardPass(losses, Recording(uses, derived), graph), parameters, clipping)
    parts = (_of_row(k, used, scale, parameters) for k in range(calls[0].count))
    return clipped_in_parts(parts, clipping)


def _of_row(
    k: int,
    used: Sequence[tuple[Rows, Tensor]],
    scale: float,
    parameters: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """A number, (1,), and the gradients of one row, (1, *parameter.shape), by name."""
    outputs = [output[k] for output, _ in used]
    arrived = [gradient[k].reshape(output[k].shape) * scale for output, gradient in used]
    with user_hooks_disabled(parameters.values()):
        found = torch.autograd.grad(outputs, list(parameters.values()), arrived, allow_unused=True, retain_graph=True)
    gradients = {name: g.unsqueeze(0) for name, g in zip(parameters, found, strict=True) if g is not None}
    return outputs[0].new_zeros(1), gradients
