"""Two backward passes over activations: norms from the rules in the first, clipped sums from them in the second."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.engines.linearity import may_be_nonlinear
from noisette.core.backward import LocatedRecording, give_each, per_example_gradients
from noisette.core.clip import ClippedSum, Clipping, Sums, Weights, group_norms, may_wait
from noisette.core.forms import ExampleGradients
from noisette.errors import PrivacyError

# By how much a norm of the second pass may exceed that of the first: kernels that add up in no fixed order differ so.
_TOLERANCE = 1e-5
_NOT_REPEATED = (
    "a second backward pass gave larger gradients than the first: what is recomputed in it, as by "
    "torch.utils.checkpoint, must come out the same; pass preserve_rng_state=True there"
)
_NOT_FINITE = (
    "a gradient that was finite in the first backward pass is not finite in the second: the model does "
    "not compute the same twice; use noisette.engines.BookKeeping(), which computes once"
)


class TwoPasses:
    """The same backward pass twice, keeping no gradient: norms first, then each parameter's clipped sum as it comes by.

    No factors of gradients are held between the two, so the memory is that of plain training. Unlike `TwoPass` it is
    exact in low precision and where gradients are not finite, since both passes start from the same losses and use the
    same rules. Hooks and functions in Python may give other gradients the second time, so such a graph goes through
    `BookKeeping`. Where the loss can be repeated, as in ``accumulate``, a second forward pass under the same random
    state replaces the activations of the first; elsewhere the graph is kept for the second pass. Of the model's own
    generators, those that are attributes of its modules have that state; another one goes on, so that the second pass
    has other random numbers, and examples count for less than with other engines.

    Guarantee: an example's gradient of a parameter is scaled down to its norm in the first pass wherever it is longer
    in the second, so that the bound does not depend on the passes being equal.

    Raises:
        PrivacyError: over a graph that was kept, the second pass gave larger gradients than the first, as a checkpoint
            does that draws other random numbers when it recomputes; over a repeated one, it gave gradients that are
            not finite, or of other parameters.

    Source: Lee & Kifer 2020, algorithm 1, with the sums of section 5.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        if may_be_nonlinear(forward):
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        losses, repeat, held = forward.losses.detach(), forward.repeat, [forward]
        del forward  # the last pass over a graph frees activations as it goes
        if repeat is None:
            squared = per_example_gradients(held[0], parameters, keep=False, retain_graph=True).squared_norms
        else:
            squared = per_example_gradients(held.pop(), parameters, keep=False).squared_norms
            held.append(repeat())
        norms = group_norms(squared, clipping.groups, losses)
        with torch.no_grad():
            weights = Weights.of(clipping, norms)
        sums: Sums = {}
        again: dict[str, Tensor] = {}

        def take(name: str, form: ExampleGradients) -> None:
            if name not in squared:
                raise PrivacyError(f"{name} has a gradient in the second backward pass, but had none in the first")
            again[name] = form.squared_norms()
            scale = None if clipping.are_finite else _shortening(squared[name], again[name])
            sums[name] = weights.sum_of(name, form, scale)

        give_each(held.pop(), parameters, take)
        if not clipping.are_finite:  # a graph of fixed operations repeats itself
            second = group_norms(again, clipping.groups, losses)
            if repeat is None:
                _check(norms, second <= norms * (1 + _TOLERANCE), _NOT_REPEATED)
            else:
                _check(norms, second.isfinite(), _NOT_FINITE)
        return ClippedSum(sums, norms)


def _shortening(before: Tensor, now: Tensor) -> Tensor:
    """By what to multiply gradients with the squared norms ``now``, so that none is longer than it was before."""
    return torch.where(now > before, (before.double() / now).sqrt(), 1.0)


def _check(norms: Tensor, holds: Tensor, message: str) -> None:
    """Check what must hold for each example that counts, (groups, b): all others were left out."""
    passed = (~norms.isfinite().all(0) | holds).all()
    if not may_wait(norms.device):
        torch._assert_async(passed, message)  # pyright: ignore[reportPrivateImportUsage]
    elif not bool(passed):
        raise PrivacyError(message)
