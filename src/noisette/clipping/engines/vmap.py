"""The engine that repeats the model's calls under ``torch.func``, each example by itself. It needs no rule."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisette._internal import checks
from noisette.core.backward import LocatedRecording, PerExampleGradients
from noisette.core.clip import ClippedSum, Clipping, Sums, clip_and_sum
from noisette.core.recording import Output, Recording, RootCall
from noisette.core.trees import leaves, with_leaves
from noisette.errors import PrivacyError

# By how much, in units of the largest output, a call may differ when it is repeated one example at a time.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_TOLERANCE_LOW_PRECISION = 5e-2


@dataclass(frozen=True)
class Vmap:
    """Repeats the model's call for each example with ``torch.func``: slower, for operations that have no rule.

    The model must give the same output again, with the examples on the first axis of its inputs and outputs. Inputs
    whose first axis does not hold the examples are passed whole.

    Args:
        chunk_size: so many examples at once; memory for their gradients is needed.

    Raises:
        ValueError: the chunk size is below one.
    """

    chunk_size: int = 32

    def __post_init__(self) -> None:
        checks.count(chunk_size=self.chunk_size)

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        losses, recording = forward.losses, forward.recording
        _refuse_other_paths(losses, recording, parameters)
        b = losses.shape[0]
        repeats = _repeats(losses, recording, parameters)
        sums: Sums = {}
        norms: list[Tensor] = []
        for start in range(0, b, self.chunk_size):
            rows = slice(start, min(start + self.chunk_size, b))
            found = PerExampleGradients.dense(_over_calls([repeat.gradients(rows) for repeat in repeats]))
            part = clip_and_sum(found, losses[rows], clipping)
            norms.append(part.norms)
            for name, total in part.sums.items():
                sums[name] = sums[name].add_(total) if name in sums else total.double()
        return ClippedSum(sums, torch.cat(norms, 1))


def _over_calls(gradients: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The gradients of all calls of the model, added up."""
    names = gradients[0] if gradients else ()
    return {name: torch.stack([of_call[name] for of_call in gradients]).sum(0) for name in names}


class _Repeat:
    """One call of the root module, to be taken again for a few examples at a time.

    Args:
        call: what was recorded.
        dys: by place among the outputs, the gradient that the losses send there.
        parameters: those to differentiate by.
        b: number of examples.
    """

    def __init__(self, call: RootCall, dys: Mapping[int, Tensor], parameters: Mapping[str, Tensor], b: int) -> None:
        self._call = call
        self._seen = {place: _by_example(call.outputs[place].tensor.detach(), b) for place in dys}
        self._dys = {place: _by_example(dy, b) for place, dy in dys.items()}
        self._parameters = {name: p.detach() for name, p in parameters.items()}
        self._buffers = {name: value.detach() for name, value in call.module.named_buffers()}
        self._arguments = call.args, dict(call.kwargs)
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves(self._arguments)]
        self._batched = [
            k for k, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == b
        ]

    def gradients(self, rows: slice) -> dict[str, Tensor]:
        """The gradients of these examples, shape (examples, *parameter.shape), by name.

        Raises:
            PrivacyError: the call gives other outputs than it gave, or ``torch.func`` cannot take it.
        """
        inputs = [self._leaves[k][rows] for k in self._batched]
        dys = [dy[rows] for dy in self._dys.values()]
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
            stack.enter_context(self._call.silent())
            for device, dtype in self._call.autocast.items():
                stack.enter_context(torch.autocast(device, dtype))
            try:
                gradients, outputs = torch.func.vmap(self._gradient, randomness="different")(inputs, dys)
            except (PrivacyError, torch.OutOfMemoryError):
                raise
            except RuntimeError as error:
                raise PrivacyError(
                    f"torch.func cannot repeat the model's call: {error}\nUse engine=noisette.engines.MultiLoss(), "
                    "which needs no torch.func."
                ) from error
        for (place, seen), again in zip(self._seen.items(), outputs, strict=True):
            _check_repeated(place, seen[rows], again)
        return gradients

    def _gradient(self, inputs: list[Tensor], dys: list[Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """The gradient of one example, and the outputs."""

        def call(parameters: dict[str, Tensor]) -> tuple[Tensor, ...]:
            values = list(self._leaves)
            for k, row in zip(self._batched, inputs, strict=True):
                values[k] = row.unsqueeze(0)
            args, kwargs = with_leaves(self._arguments, values)
            buffers = {name: value.clone() for name, value in self._buffers.items()}  # the model's own stay as they are
            named = {self._call.prefix + name: value for name, value in parameters.items()}
            output: Any = torch.func.functional_call(self._call.module, named | buffers, args, kwargs)
            returned = leaves(output)
            return tuple(returned[place] for place in self._dys)

        outputs, pull_back = torch.func.vjp(call, self._parameters)[:2]
        for place, dy, again in zip(self._dys, dys, outputs, strict=True):
            if again.shape != dy.shape:
                raise _not_repeated(place, f"shape {tuple(again.shape)} instead of {tuple(dy.shape)}")
        [gradients] = pull_back(tuple(dy.to(again.dtype) for dy, again in zip(dys, outputs, strict=True)))
        return gradients, outputs


def _repeats(losses: Tensor, recording: Recording, parameters: Mapping[str, Tensor]) -> list[_Repeat]:
    """Every call that the losses depend on."""
    places = [(k, place, output) for k, call in enumerate(recording.calls) for place, output in call.outputs.items()]
    arriving = torch.autograd.grad(
        losses, [output.edge for _, _, output in places], torch.ones_like(losses), allow_unused=True
    )
    dys: dict[int, dict[int, Tensor]] = {}
    for (k, place, output), dy in zip(places, arriving, strict=True):
        if dy is not None:
            _check_output(place, output, losses.shape[0])
            dys.setdefault(k, {})[place] = dy
    return [_Repeat(recording.calls[k], of_call, parameters, losses.shape[0]) for k, of_call in dys.items()]


def _by_example(tensor: Tensor, b: int) -> Tensor:
    """The rows of each example: (b, rows of one example, ...)."""
    return tensor.reshape(b, tensor.shape[0] // b, *tensor.shape[1:])


def _check_output(place: int, output: Output, b: int) -> None:
    shape = tuple(output.tensor.shape)
    if not shape or shape[0] % b:
        raise PrivacyError(
            f"engine=noisette.engines.Vmap() needs the {b} examples on the first axis of what the model returns, but "
            f"output {place} has shape {shape}; use engine=noisette.engines.MultiLoss()"
        )
    if output.tensor._version != output.version:
        raise PrivacyError(
            f"output {place} of the model was changed in place after the call, so engine=noisette.engines.Vmap() "
            "cannot check that it repeats; use the out-of-place form of the operation that follows, or "
            "engine=noisette.engines.MultiLoss()"
        )


def _check_repeated(place: int, seen: Tensor, again: Tensor) -> None:
    """The outputs are equal but for rounding, wherever both are numbers."""
    apart = (seen.double() - again.detach().double()).abs()
    known = apart.isfinite()
    if known.any():
        tolerance = _TOLERANCE.get(seen.dtype, _TOLERANCE_LOW_PRECISION)
        largest, scale = float(apart[known].max()), float(seen.double()[known].abs().max())
        if not largest <= tolerance * scale:
            raise _not_repeated(place, f"values that differ by {largest:.3g}")


def _not_repeated(place: int, difference: str) -> PrivacyError:
    return PrivacyError(
        f"the model's call gave output {place} with {difference} when it was repeated for single examples: the model "
        "is random, has state, mixes examples, or holds them on another axis than the first. Use "
        "engine=noisette.engines.MultiLoss(), which repeats nothing."
    )


def _refuse_other_paths(losses: Tensor, recording: Recording, parameters: Mapping[str, Tensor]) -> None:
    """Check that every path from the losses to a parameter goes through an output of a call.

    Raises:
        PrivacyError: some do not; all such parameters are listed.
    """
    outputs = {(edge.node, edge.output_nr) for edge in recording.outputs}
    names = {id(p): name for name, p in parameters.items()}
    found: set[str] = set()
    seen: set[Any] = set()
    stack = [(losses.grad_fn, losses.output_nr)]
    while stack:
        node, number = stack.pop()
        if node is None or node in seen or (node, number) in outputs:
            continue
        seen.add(node)
        stack += node.next_functions
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
    if found:
        raise PrivacyError(
            f"{len(found)} parameters reach the losses otherwise than through what the model returned: "
            f"{', '.join(sorted(found))}. Compute the losses from a call of the module itself, with no penalty on its "
            "parameters added (weight decay belongs to the optimizer)."
        )
