"""Ways to compute the clipped sum of a batch; all give the same sum.

Each is given a forward pass whose losses were computed for all examples at once, each loss from its own example.
`BookKeeping` and `ReweightGP` get per-example gradients from the rules of the operations that use a parameter.
`PerExampleLoop` and `Vmap` need no rules: they compute the loss once more, for each example alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from noisette._internal import checks
from noisette.clipping.one_by_one import clipped_sum_one_by_one
from noisette.core.backward import ForwardPass, per_example_gradients
from noisette.core.clip import BookKeeping as BookKeeping
from noisette.core.clip import (
    ClippedSum,
    Clipping,
    Weights,
    clipped_in_parts,
    group_norms,
    may_wait,
)
from noisette.core.forms import ExampleGradients
from noisette.core.loss import as_if_compiled, one_value
from noisette.core.trace import LossCall
from noisette.errors import PrivacyError


class ReweightGP:
    """Two passes that keep no gradient: norms in the first, each parameter's clipped sum in the second.

    No factors of gradients are held between the two, so the memory is that of plain training. In the second pass the
    rules weigh the gradients of the examples as they come by; the losses are not re-weighted, so that the sum is exact
    in half precision, with several clipping groups, for hundreds of examples, and where some gradient is not finite.

    Both passes go over one graph. Where activation checkpoints are recomputed in a backward pass, the forward pass is
    repeated instead, with the same random numbers: then the memory is that of plain training with checkpoints.
    `BookKeeping` takes over where such a pass cannot be repeated.

    Guarantee: an example's gradient of a parameter is scaled down to its norm in the first pass wherever it is longer
    in the second, so that the bound does not depend on the passes being equal.

    Raises:
        PrivacyError: the second pass gave gradients that are not finite, or of other parameters, as those of a function
            that draws random numbers of its own in each backward pass may be.

    Source: Lee & Kifer 2020, algorithm 1, with the sums of section 5.
    """

    repeats_the_pass = True  # it is given a forward pass that can be run again

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        """See `noisette.core.clip.Engine`."""
        is_repeated = any(use.is_recomputed for use in forward.recording.uses)
        if is_repeated and forward.repeat is None:
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        squared = per_example_gradients(
            forward, parameters, lambda name, form: form.squared_norms(), retain_graph=not is_repeated
        )
        norms = group_norms(squared, clipping.groups, forward.losses)
        with torch.no_grad():
            weights = Weights.of(clipping, norms)

        def sum_and_norms(name: str, form: ExampleGradients) -> tuple[Tensor, Tensor]:
            if name not in squared:
                raise PrivacyError(f"{name} has a gradient in the second backward pass, but had none in the first")
            now = form.squared_norms()
            return weights.sum_of(name, form, None if clipping.are_finite else _shortening(squared[name], now)), now

        second = forward if not is_repeated or forward.repeat is None else forward.repeat()
        found = per_example_gradients(second, parameters, sum_and_norms)
        if not clipping.are_finite:  # a graph of fixed operations repeats itself
            again = {name: now for name, (_, now) in found.items()}
            _check_finite(norms, group_norms(again, clipping.groups, forward.losses))
        return ClippedSum({name: total for name, (total, _) in found.items()}, norms)


def _shortening(before: Tensor, now: Tensor) -> Tensor:
    """By what to multiply gradients with the squared norms ``now``, so that none is longer than it was before."""
    return torch.where(now > before, (before.double() / now).sqrt(), 1.0)


def _check_finite(first: Tensor, second: Tensor) -> None:
    """Check that the norms (groups, b) of the second pass are finite for each example that counts.

    All others were left out.
    """
    passed = (~first.isfinite().all(0) | second.isfinite()).all()
    message = (
        "a gradient that was finite in the first backward pass is not finite in the second: the model does "
        "not compute the same twice; use noisette.engines.BookKeeping(), which computes once"
    )
    if not may_wait(first.device):
        torch._assert_async(passed, message)  # pyright: ignore[reportPrivateImportUsage]
    elif not bool(passed):
        raise PrivacyError(message)


class PerExampleLoop:
    """One example after the other, forward and backward, clipped and added up. Needs no rule and no ``vmap``; slow.

    Random numbers of the loss are drawn anew for each example. They are others than those of `BookKeeping`, and the
    sum is that of other masks, for example.

    Source: Lee & Kifer 2020 (nxBP).
    """

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        """See `noisette.core.clip.Engine`."""
        call = _call_of(forward)
        with _autocast(call):
            return clipped_sum_one_by_one(call.loss, call.model, call.batch, parameters, call.buffers, clipping)


@dataclass(frozen=True)
class Vmap:
    """``torch.func.vmap`` of ``torch.func.grad`` of the loss: the gradients of a chunk of examples, written out.

    The plain reference: it needs no rule, and memory for the gradients of a chunk. Random numbers of the loss are drawn
    anew, as by `PerExampleLoop`.

    Args:
        chunk_size: so many examples at once.

    Raises:
        ValueError: the chunk size is below one.
    """

    chunk_size: int = 32

    def __post_init__(self) -> None:
        checks.count(chunk_size=self.chunk_size)

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        """See `noisette.core.clip.Engine`.

        Raises:
            PrivacyError: ``torch.func`` cannot differentiate the loss.
        """
        return clipped_in_parts(_of_chunks(_call_of(forward), parameters, self.chunk_size), clipping)


class _Loss(nn.Module):
    """The loss of one example as a module, for ``torch.func.functional_call``."""

    def __init__(self, call: LossCall) -> None:
        super().__init__()
        self.model = call.model
        self._call = call

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        one = self._call.batch.with_tensors([tensor.unsqueeze(0) for tensor in tensors])
        with as_if_compiled():
            return one_value(self._call.loss(self.model, *one.args, **one.kwargs))


def _of_chunks(
    call: LossCall, parameters: Mapping[str, Tensor], size: int
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The losses (n,) and gradients (n, *parameter.shape) of n examples at a time."""
    module = _Loss(call)
    buffers = {f"model.{name}": buffer.detach() for name, buffer in call.buffers.values().items()}
    trained = {f"model.{name}": p.detach() for name, p in parameters.items()}

    def loss_of(trained: dict[str, Tensor], tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}  # the model's own stay as they are
        loss = torch.func.functional_call(module, trained | copies, (tensors,))
        return loss, loss

    of_one = torch.func.grad(loss_of, has_aux=True)
    of_all = torch.func.vmap(of_one, in_dims=(None, 0), randomness="different")
    for rows in zip(*[tensor.detach().split(size) for tensor in call.batch.tensors], strict=True):
        with warnings.catch_warnings(), _autocast(call):
            warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
            try:
                gradients, losses = of_all(trained, list(rows))
            except (PrivacyError, torch.OutOfMemoryError):
                raise
            except RuntimeError as error:
                raise PrivacyError(
                    f"torch.func cannot differentiate the loss: {error}\n"
                    "Use engine=noisette.engines.PerExampleLoop(), which needs no torch.func."
                ) from error
        yield losses, {name.removeprefix("model."): g for name, g in gradients.items()}


def _call_of(forward: ForwardPass) -> LossCall:
    """What computes the loss for other examples.

    Raises:
        RuntimeError: the step is traced, and a graph with all examples one after the other is of no use.
    """
    if get_proxy_mode() is not None:
        raise RuntimeError("this engine computes examples one after the other, or in chunks, and is not captured")
    if forward.recording.call is None:
        raise PrivacyError(
            "this engine computes the loss of one example, which a loop that calls loss.backward() does not give; use "
            "noisette.engines.BookKeeping() or ReweightGP()"
        )
    return forward.recording.call


@contextmanager
def _autocast(call: LossCall) -> Iterator[None]:
    """The lower precision in which the losses were recorded."""
    with ExitStack() as stack:
        for device, dtype in call.autocast.items():
            stack.enter_context(torch.autocast(device, dtype))
        yield
