"""The same backward pass twice: norms in the first, each parameter's clipped sum as it comes by in the second."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.clipping.norms import ClippedSum, Clipping, Sums, group_norms, group_of, kept_examples
from noisette.errors import PrivacyError
from noisette.gradients.per_example import LocatedRecording, pass_gradients, per_example_gradients
from noisette.gradients.rules import ExampleGradients
from noisette.gradients.rules.forms import weighted_sums


class TwoPasses:
    """A first backward pass for the norms, the same one again for the sums: no gradient is kept between the two.

    Both passes use the same rules, so the sum is that of `BookKeeping`, also in low precision and where gradients are
    not finite. Where the loss can be repeated, as in ``accumulate``, a second forward pass under the same random state
    replaces the activations of the first; elsewhere the graph is kept for the second pass.

    Guarantee: does not depend on the second pass being like the first. An example's gradient of a parameter is scaled
    down to its norm in the first pass wherever it is longer in the second, so that all of them together are within the
    bound; one that is not finite in the second pass alone is refused.

    Raises:
        PrivacyError: a gradient is finite, or there at all, in one pass alone.

    Source: Lee & Kifer 2020, algorithm 1, with both passes by rules.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        losses, repeat, only = forward.losses.detach(), forward.repeat, [forward]
        del forward  # a pass that is the last one of its graph frees activations as it goes
        if repeat is None:
            squared = per_example_gradients(only[0], parameters, keep=False, retain_graph=True).squared_norms
        else:
            squared = per_example_gradients(only.pop(), parameters, keep=False).squared_norms
            only.append(repeat())
        norms = group_norms(squared, clipping.groups, losses)
        with torch.no_grad():
            sums = _Sums(squared, clipping, clipping.factors(norms))
        pass_gradients(only.pop(), parameters, sums.receive)
        sums.check_finite()
        return ClippedSum(sums.sums, norms)


class _Sums:
    """The clipped sums of a second pass, by the factors that follow from the norms of a first one."""

    def __init__(self, squared: Mapping[str, Tensor], clipping: Clipping, factors: Tensor) -> None:
        self.sums: Sums = {}
        self._squared = squared
        self._group = group_of(clipping.groups)
        self._kept = kept_examples(clipping, factors)
        self._rows = (factors if self._kept is None else factors[:, self._kept]).unbind()
        self._are_finite = clipping.are_finite
        self._again: list[Tensor] = []  # norms of the second pass, of the kept examples

    def receive(self, name: str, form: ExampleGradients) -> None:
        """Add up a parameter's gradients, none of them longer than in the first pass."""
        if name not in self._squared:
            raise PrivacyError(f"{name} has a gradient in the second backward pass, but had none in the first")
        before, now = self._squared[name], form.squared_norms()
        if self._kept is not None:
            before, now = before[self._kept], now[self._kept]
        self._again.append(now.double().sum())
        row = self._rows[self._group[name]]
        weights = row * _shortening(before, now).to(row)
        self.sums |= weighted_sums({name: form}, {name: weights}, self._kept)

    def check_finite(self) -> None:
        """Check that no example that counts had a gradient that is finite in the first pass alone."""
        if self._are_finite or not self._again:  # in a graph both passes are one fixed list of operations
            return
        if not bool(torch.stack(self._again).isfinite().all()):
            raise PrivacyError(
                "a gradient that was finite in the first backward pass is not finite in the second: the model does "
                "not compute the same twice; use noisette.engines.BookKeeping(), which computes once"
            )


def _shortening(before: Tensor, now: Tensor) -> Tensor:
    """By what to multiply gradients with the squared norms ``now``, so that none is longer than it was before."""
    return torch.where(now > before, (before.double() / now).sqrt(), 1.0)
