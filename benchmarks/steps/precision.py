"""Steps in single precision, or in bfloat16 where autocast says so."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.steps.sgd import Step

PRECISIONS = ("float32", "bfloat16")


def in_precision(dtype: str, device: str, step: Callable[[], object]) -> Step:
    """A step as it is, or under autocast to bfloat16: parameters and sums stay in single precision.

    The whole step is under it, for every method alike, because some of them compute gradients in the forward pass.
    """

    def in_bfloat16() -> None:
        with torch.autocast(device, torch.bfloat16):
            step()

    def as_it_is() -> None:
        step()

    return as_it_is if dtype == "float32" else in_bfloat16
