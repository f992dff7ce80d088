"""Among many, an example answers as among few: coupling that begins at some size is found before that size comes."""

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
    batched,
    by_example,
    differ,
    doubled,
    in_double,
    public_batch,
)

_CROWD = 32


def check_batch_size_independence(model: nn.Module, example: Call) -> None:
    """The first and the last of many examples, half of which are alike, answer as they do by themselves.

    Experts that serve so many examples, or statistics of so many at least, let a small batch pass.

    Raises:
        PrivacyError: they answer otherwise.
    """
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        crowd = batched(public_batch(example, _CROWD), _half_alike, _CROWD)
    crowded = _crowded(model, crowd)
    if crowded:  # Rounding may settle a near tie otherwise.
        with in_double(model), suppress(RuntimeError):
            crowded = _crowded(model, crowd.map(doubled))
    if crowded:
        raise PrivacyError(
            f"an example answers otherwise among {_CROWD} others than among {EXAMPLES}. Every operation must look at "
            "one example at a time, whatever the size of the batch: no experts with a capacity, no statistics of it"
        )


def _half_alike(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[: _CROWD // 2], tensor[:1].expand_as(tensor[_CROWD // 2 :])])


def _crowded(model: nn.Module, crowd: Call) -> bool:
    all_of_them = _answers(model, crowd, _CROWD)
    return any(
        differ(
            [answer[few] for answer in all_of_them],
            _answers(model, batched(crowd, lambda tensor, few=few: tensor[few], _CROWD), EXAMPLES),
        )
        for few in (slice(EXAMPLES), slice(_CROWD - EXAMPLES, _CROWD))
    )


def _answers(model: nn.Module, batch: Call, b: int) -> tuple[Tensor, ...]:
    """What the model returns for b examples, each tensor with the examples on its first axis."""
    with buffers_restored(model), torch.random.fork_rng(), torch.no_grad(), DisableRandomness():
        return by_example(model(*batch.args, **batch.kwargs), b)
