"""The default engine: one backward pass, and everything else from the per-example gradients of the rules."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from noisette.core.backward import LocatedRecording, per_example_gradients
from noisette.core.clip import ClippedSum, Clipping, clip_and_sum


class BookKeeping:
    """One backward pass over activations, then norms and the clipped sum from the gradients of the rules.

    Source: Bu et al. 2022 (book-keeping); norms as in Lee & Kifer 2020, section 5.
    """

    def clipped_sum(
        self, forward: LocatedRecording, parameters: Mapping[str, Tensor], clipping: Clipping
    ) -> ClippedSum:
        losses, forward_only = forward.losses, [forward]
        del forward  # the pass frees activations as it goes
        found = per_example_gradients(forward_only.pop(), parameters, keep=True)
        return clip_and_sum(found, losses, clipping)
