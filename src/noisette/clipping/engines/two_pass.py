"""The engine of Lee & Kifer 2020: a first backward pass for the norms, a second one for the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.engines.linearity import may_be_nonlinear
from noisette.core.backward import LocatedRecording, per_example_gradients, user_hooks_disabled
from noisette.core.clip import ClippedSum, Clipping, Sums, group_norms
from noisette.core.forms import EXAMPLES_IN_A_BLOCK

# Their backward pass is wrong in PyTorch 2.13 on processors where the memory formats of input and gradient differ.
_WRONG_BACKWARD = {torch.nn.functional.batch_norm, torch.nn.functional.instance_norm}


class TwoPass:
    """A first backward pass for the norms, a second one of the re-weighted losses for the sum: less memory, more time.

    With several clipping groups there is one second pass for each. A second pass gives the weighted sum only where the
    backward pass is linear, so a graph with hooks, or with functions written in Python, goes through `BookKeeping`. So
    does a microbatch of more than 256 examples, whose sum would be too inexact.

    Source: Lee & Kifer 2020, algorithm 1 and eq. 3.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        wrong = any(use.dtype.itemsize < 4 or use.operation in _WRONG_BACKWARD for use in forward.recording.uses)
        moved = any(place is not None and place.order is not None for place in forward.examples)
        if wrong or moved or may_be_nonlinear(forward) or len(forward.losses) > EXAMPLES_IN_A_BLOCK:
            # The gradients of a second pass would differ from those whose norms were taken, as those of an example
            # would whose place is not known, or be added up in single precision over too many examples.
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        found = per_example_gradients(forward, parameters, keep=False, retain_graph=True)
        norms = group_norms(found.squared_norms, clipping.groups, forward.losses)
        weights = clipping.factors(norms)
        if not clipping.are_finite and not weights.isfinite().all():
            # A zero weight does not stop an infinite activation in a second pass; the rules cut the example out.
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        losses = forward.losses
        del forward  # the second pass frees activations as it goes
        groups = [[name for name in names if name in found.squared_norms] for names in clipping.groups]
        with user_hooks_disabled(parameters.values()):
            return ClippedSum(_second_passes(losses, parameters, groups, weights), norms)


def _second_passes(
    losses: Tensor, parameters: Mapping[str, Tensor], groups: Sequence[Sequence[str]], weights: Tensor
) -> Sums:
    """The gradients of the weighted losses, one pass for each group that the losses depend on."""
    passes = [(names, row) for names, row in zip(groups, weights, strict=True) if names]
    sums: Sums = {}
    for k, (names, row) in enumerate(passes, start=1):
        gradients = torch.autograd.grad(
            losses, [parameters[name] for name in names], grad_outputs=row, retain_graph=k < len(passes)
        )
        if len({g.data_ptr() for g in gradients}) < len(gradients):
            gradients = [g.clone() for g in gradients]  # autograd returns one tensor for parameters of equal gradient
        sums |= dict(zip(names, gradients, strict=True))
    return sums
