"""Whether a captured function gives what the function itself gives, for the same inputs, random numbers and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# Of the norm of all outputs together. Operations may be ordered otherwise than in the function, and so round otherwise.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_TOLERANCE_LOW_PRECISION = 5e-2
# A compiled graph rounds activations otherwise, and where one is zero up to rounding a ReLU takes the other branch:
# sums of single layers of a ResNet-18 differ by 3e-3.
COMPILED_TOLERANCE = 1e-2


def tolerance_of(dtypes: set[torch.dtype]) -> float:
    """How far outputs may differ, as a share of their norm, where tensors of these types were computed with."""
    return max(
        [_TOLERANCE.get(dtype, _TOLERANCE_LOW_PRECISION) for dtype in dtypes if dtype.is_floating_point] or [0.0]
    )


def relative_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The norm of the difference of two lists of tensors, divided by the norm of the expected ones.

    >>> round(relative_difference([torch.tensor([3.0, 4.1])], [torch.tensor([3.0, 4.0])]), 3)
    0.02
    """
    pairs = [(one.double(), other.double()) for one, other in zip(outputs, expected, strict=True)]
    if not pairs:
        return 0.0
    squares = [torch.stack([(one - other).square().sum(), other.square().sum()]) for one, other in pairs]
    difference, size = torch.stack(squares).sum(0).tolist()  # read at once: a GPU would be waited for each time
    if not difference:
        return 0.0
    return (difference / size) ** 0.5 if size else float("inf")


@contextmanager
def undone(buffers: Iterable[Tensor], device: torch.device) -> Iterator[None]:
    """What is drawn from torch's generators and written into these tensors within it is undone at its end."""
    cuda = device if device.type == "cuda" else None
    before = torch.get_rng_state(), torch.cuda.get_rng_state(cuda) if cuda else None
    kept = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        if cuda is not None and before[1] is not None:
            torch.cuda.set_rng_state(before[1], cuda)
        with torch.no_grad():
            for buffer, content in kept:
                if not torch.equal(buffer, content):  # a write would make it look new to those who count writes
                    buffer.copy_(content)
