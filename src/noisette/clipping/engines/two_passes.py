"""Two backward passes over activations: norms from the rules in the first, clipped sums from them in the second."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.engines.linearity import may_be_nonlinear
from noisette.clipping.norms import ClippedSum, Clipping, Sums, Weights, group_norms, may_wait
from noisette.errors import PrivacyError
from noisette.gradients.per_example import LocatedRecording, give_each, per_example_gradients
from noisette.gradients.rules import ExampleGradients

# By how much a norm of the second pass may exceed that of the first: kernels that add up in no fixed order differ so.
_TOLERANCE = 1e-5
_NOT_REPEATED = (
    "a second backward pass gave larger gradients than the first: what is recomputed in it, as by "
    "torch.utils.checkpoint, must come out the same; pass preserve_rng_state=True there"
)


class TwoPasses:
    """The same backward pass twice, keeping no gradient: norms first, then each parameter's clipped sum as it comes by.

    No factors of gradients are held between the two, so the memory is that of plain training. Unlike `TwoPass` it is
    exact in low precision and where gradients are not finite, since both passes start from the same losses and use the
    same rules. Hooks and functions in Python may give other gradients the second time, so such a graph goes through
    `BookKeeping`.

    Raises:
        PrivacyError: the second pass gave larger gradients than the first, as a checkpoint does that draws other random
            numbers when it recomputes.

    Source: Lee & Kifer 2020, algorithm 1, with the sums of section 5.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        if may_be_nonlinear(forward):
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        losses, held = forward.losses, [forward]
        del forward  # the second pass frees activations as it goes
        squared = per_example_gradients(held[0], parameters, keep=False, retain_graph=True).squared_norms
        norms = group_norms(squared, clipping.groups, losses)
        with torch.no_grad():
            weights = Weights.of(clipping, norms)
        sums: Sums = {}
        again: dict[str, Tensor] = {}

        def take(name: str, form: ExampleGradients) -> None:
            again[name] = form.squared_norms()
            sums[name] = weights.sum_of(name, form)

        give_each(held.pop(), parameters, take)
        if not clipping.are_finite:  # a graph of fixed operations repeats itself
            _check_repeated(norms, group_norms(again, clipping.groups, losses))
        return ClippedSum(sums, norms)


def _check_repeated(norms: Tensor, again: Tensor) -> None:
    """Check that the gradients that were added up are those whose norms were taken."""
    finite = norms.isfinite()  # all others were left out
    repeated = (~finite | (again <= norms * (1 + _TOLERANCE))).all()
    if not may_wait(norms.device):
        torch._assert_async(repeated, _NOT_REPEATED)  # pyright: ignore[reportPrivateImportUsage]
    elif not bool(repeated):
        raise PrivacyError(_NOT_REPEATED)
