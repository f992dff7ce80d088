"""A check that outputs do not depend on the batch size, which finds coupling that only starts at a larger batch."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn

from noisette.errors import PrivacyError
from noisette.validation.buffers import buffers_restored
from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import (
    EXAMPLES,
    SEED,
    Call,
    by_example,
    differ,
    in_double,
    map_batched,
    public_batch,
    to_double,
)

_LARGE_BATCH = 32


def check_batch_size_independence(model: nn.Module, example: Call) -> None:
    """The first and the last examples of a large batch have the same outputs in a small batch.

    Half of the large batch are equal examples, which compete for the same capacity. A small batch alone would not show
    experts with a larger capacity, or statistics that need a minimum number of examples.

    Raises:
        PrivacyError: the outputs differ.
    """
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        large = map_batched(public_batch(example, _LARGE_BATCH), _second_half_equal, _LARGE_BATCH)
    depends = _depends_on_size(model, large)
    if depends:  # double precision decides, because rounding may decide between nearly equal values
        with in_double(model), suppress(RuntimeError):
            depends = _depends_on_size(model, large.map(to_double))
    if depends:
        raise PrivacyError(
            f"the output of an example differs between a batch of {_LARGE_BATCH} examples and one of {EXAMPLES}. Every "
            "operation must treat each example separately at any batch size: no experts with a capacity, no statistics "
            "over the batch"
        )


def _second_half_equal(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[: _LARGE_BATCH // 2], tensor[:1].expand_as(tensor[_LARGE_BATCH // 2 :])])


def _depends_on_size(model: nn.Module, large: Call) -> bool:
    """Whether the first or the last examples of this batch have other outputs in a batch of their own."""
    outputs = _outputs(model, large, _LARGE_BATCH)
    return any(
        differ(
            [output[part] for output in outputs],
            _outputs(model, map_batched(large, lambda tensor, part=part: tensor[part], _LARGE_BATCH), EXAMPLES),
        )
        for part in (slice(EXAMPLES), slice(_LARGE_BATCH - EXAMPLES, _LARGE_BATCH))
    )


def _outputs(model: nn.Module, batch: Call, b: int) -> tuple[Tensor, ...]:
    """The model's outputs for b examples, each tensor with the examples on its first axis."""
    with buffers_restored(model), torch.random.fork_rng(), torch.no_grad(), DisableRandomness():
        return by_example(model(*batch.args, **batch.kwargs), b)
