"""A check that outputs do not depend on the batch size, which finds coupling that only starts at a larger batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisette.core.randomness import seed_torch
from noisette.errors import PrivacyError
from noisette.validation.buffers import buffers_restored
from noisette.validation.deterministic import EXTREME_LEVELS, LEVELS, DisableRandomness
from noisette.validation.double_precision import in_double, to_double
from noisette.validation.probe_inputs import (
    EXAMPLES,
    SEED,
    Call,
    Kind,
    by_example,
    differ,
    public_batch,
)
from noisette.validation.seeded_randomness import randomness_seeded

LARGE_BATCH = 32
_TOLERANCE = 1e-8  # in double precision; 1e-2 otherwise
_FEW = 2  # rows at each end of the batch that are computed again


def check_batch_size_independence(
    model: nn.Module, example: Call, size: int = LARGE_BATCH, *, exact: bool = True
) -> None:
    """The first and the last examples of a large batch have the same outputs in a small batch and alone.

    Half of the large batch are equal examples, which compete for the same capacity. A small batch alone would not show
    experts with a larger capacity, or statistics that need a minimum number of examples. Each kind of inputs is tried
    at each level of the random operations, with fewer examples.

    Args:
        model: the user's model.
        example: a call of it.
        size: examples in the large batch.
        exact: whether the weights may be computed with in double precision.

    Raises:
        PrivacyError: the outputs differ.
    """
    with randomness_seeded(model) as seed, buffers_restored(model) as restore_buffers:
        seed_torch(SEED)
        try:
            with _precision(model, exact=exact):
                found = _difference(model, example, size, (seed, restore_buffers), exact=exact)
        except PrivacyError:
            raise
        except Exception:  # the model does not support double precision; its code may raise anything
            if not exact:
                raise
            found = _difference(model, example, size, (seed, restore_buffers), exact=False)
    if found:
        raise PrivacyError(found)


@contextmanager
def _precision(model: nn.Module, *, exact: bool) -> Iterator[None]:
    if exact:
        with in_double(model):
            yield
    else:
        yield


def _difference(model: nn.Module, example: Call, size: int, reset: Sequence[Any], *, exact: bool) -> str:
    """How an output depends on the rest of the batch; empty if it does not."""
    tolerance = _TOLERANCE if exact else 1e-2

    def drawn(b: int, kind: Kind) -> Call:
        batch = public_batch(example, b, kind)
        return batch.map(to_double) if exact else batch

    large = drawn(size, example.kinds[0]).map_rows(_second_half_equal)
    found, random = _differs(model, large, size, EXAMPLES, 0.5, reset, tolerance)
    if found:
        return (
            f"the output of an example differs between a batch of {size} examples and one of {EXAMPLES}. Every "
            "operation must treat each example separately at any batch size: no experts with a capacity, no statistics "
            "over the batch"
        )
    if size != LARGE_BATCH:
        return ""  # the other kinds and levels are those of the first check
    for kind in example.kinds:
        batch = drawn(EXAMPLES, kind)
        for level in (0.5, *LEVELS, *EXTREME_LEVELS) if random else (0.5,):
            found, used = _differs(model, batch, EXAMPLES, _FEW, level, reset, tolerance)
            random |= used
            if found:
                return (
                    f"the output of an example differs between a batch of {EXAMPLES} examples and one of {_FEW}, with "
                    f"inputs that are {kind.name}. Every operation must treat each example separately, whatever the "
                    "values and the random numbers are"
                )
    return ""


def _second_half_equal(tensor: Tensor) -> Tensor:
    half = tensor.shape[0] // 2
    return torch.cat([tensor[:half], tensor[:1].expand_as(tensor[half:])])


def _differs(
    model: nn.Module, batch: Call, b: int, few: int, level: float | None, reset: Sequence[Any], tolerance: float
) -> tuple[bool, bool]:
    """Whether the first or the last examples have other outputs in a batch of their own; whether anything is random."""
    outputs, random = _outputs(model, batch, b, level, reset)
    found = False
    for part in (slice(few), slice(b - few, b)):
        own, _ = _outputs(model, batch.map_rows(lambda tensor, part=part: tensor[part]), few, level, reset)
        found |= differ([output[part] for output in outputs], own, tolerance)
    return found, random


def _outputs(
    model: nn.Module, batch: Call, b: int, level: float | None, reset: Sequence[Any]
) -> tuple[tuple[Tensor, ...], bool]:
    """The model's outputs for b examples, one row for each, and whether it called anything random."""
    for restore in reset:
        restore()
    with torch.no_grad(), DisableRandomness(level) as constants:
        return by_example(model(*batch.args, **batch.kwargs), b), constants.used
