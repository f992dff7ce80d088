"""Engines of per-example clipping that read each example's gradient from rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette.clipping.norms import ClippedSum, Clipping, Norms, Sums, clip_and_add, hooks_off
from noisette.gradients.per_example import example_gradients
from noisette.gradients.rules import ExampleGradients, compact
from noisette.gradients.tape import Record

# Their own backward pass is wrong in PyTorch 2.13 on processors where the memory formats of input and gradient differ.
_MISTAKEN = {torch.nn.functional.batch_norm, torch.nn.functional.instance_norm}


class BookKeeping:
    """One backward pass over activations, then norms and the clipped sum from what it left behind.

    Source: Bu et al. 2022 (book-keeping); norms as in Lee & Kifer 2020, section 5.
    """

    def clipped_sum(
        self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        return by_rules(losses, record, parameters, clipping)


class TwoPass:
    """A first backward pass for the norms, a second one of the re-weighted losses for the sum: less memory, more time.

    With several clipping groups the second pass is taken once for each.

    Source: Lee & Kifer 2020, algorithm 1 and eq. 3.
    """

    def clipped_sum(
        self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        if any(use.dtype.itemsize < 4 or use.operation in _MISTAKEN for use in record.uses):
            # A second pass would come to other gradients than those measured.
            return by_rules(losses, record, parameters, clipping)
        norms = Norms(losses, clipping.groups)
        record.calls.clear()
        again = record.copy()
        with hooks_off(parameters.values()):
            example_gradients(losses, record, parameters, norms.add, retain_graph=True)
        found = norms.by_group()
        weights = clipping.factors(found)
        if not weights.isfinite().all():
            # No zero stops an infinity on its way through a second pass.
            return by_rules(losses, again, parameters, clipping)
        again.uses.clear()  # with them go activations that the second pass frees as it goes
        groups = [[name for name in names if name in norms.seen] for names in clipping.groups]
        with hooks_off(parameters.values()):
            return ClippedSum(_second_passes(losses, parameters, groups, weights), found)


def by_rules(
    losses: Tensor,
    record: Record,
    parameters: Mapping[str, Tensor],
    clipping: Clipping,
    *,
    retain_graph: bool = False,
) -> ClippedSum:
    """The clipped sum from rules alone, which keep a bad example apart from the others."""
    forms: dict[str, ExampleGradients] = {}
    norms = Norms(losses, clipping.groups)

    def settle(name: str, form: ExampleGradients) -> None:
        forms[name] = compact(form)
        norms.add(name, forms[name])

    record.calls.clear()  # the outputs need no memory any more
    with hooks_off(parameters.values()):
        example_gradients(losses, record, parameters, settle, retain_graph=retain_graph)
    return clip_and_add(forms, norms, clipping)


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
            gradients = [g.clone() for g in gradients]  # autograd hands out one tensor for parameters of equal gradient
        sums |= dict(zip(names, gradients, strict=True))
    return sums
