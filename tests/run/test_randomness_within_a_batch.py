"""Random numbers of torch within a batch have a secret seed, whatever seeds it; after the step all is as before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import OneByOneWarning, PerExampleClip, PrivateRun, privatize

RECORDS, FEATURES = 6, 64


class Records:
    """Records of ones, by a data set that seeds torch for each of them or not."""

    def __init__(self, seeds: bool) -> None:
        self.seeds = seeds

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, k: int) -> Tensor:
        if self.seeds:
            torch.manual_seed(k)
        return torch.ones(FEATURES)


def masked(model: nn.Module, x: Tensor) -> Tensor:
    return model(F.dropout(x, 0.5)).sum()


def masked_one_by_one(model: nn.Module, x: Tensor) -> Tensor:
    return masked(model, x) if float(x.sum()) > 0 else x.sum()


def start(dataset: Any, steps: int = 1, rate: float = 1.0) -> PrivateRun:
    model = nn.Linear(FEATURES, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    declared = {"sampling_rate": rate, "expected_batch_size": 1, "steps": steps, "noise_multiplier": 1e-9}
    return privatize(PerExampleClip(model, 1e6), optimizer, dataset, accountant=noisette.RdpAccountant(), **declared)


def seed() -> None:
    torch.manual_seed(7)


def set_a_known_state() -> None:
    torch.set_rng_state(torch.Generator().manual_seed(7).get_state())


LOOPS: dict[str, dict[str, Any]] = {
    "before the batches": {"at_first": seed},
    "for each microbatch": {"in_microbatch": seed},
    "by a state": {"in_microbatch": set_a_known_state},
    "by the data set": {"seeds": True},
}


def nothing() -> None: ...


def masks(
    loss: Callable[..., Tensor],
    at_first: Callable[[], None] = nothing,
    in_batch: Callable[[], None] = nothing,
    in_microbatch: Callable[[], None] = nothing,
    *,
    seeds: bool = False,
) -> Tensor:
    """How many of the masks of each microbatch keep a feature."""
    kept = []
    with start(Records(seeds)) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", OneByOneWarning)
        at_first()
        for batch in run.batches():
            in_batch()
            for x in batch.microbatches(2):
                in_microbatch()
                run.accumulate(loss, x)
                kept.append(run.bound.pop_sums()[0].grads[0].flatten() / 2)
            run.optimizer.step()
    return torch.stack(kept)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("loss", [masked, masked_one_by_one], ids=lambda loss: loss.__name__)
def test_masks_are_not_those_of_a_known_seed(loss: Callable[..., Tensor], loop: dict[str, Any]) -> None:
    """Nor of another run with the same seeds: of 64 features, about half are kept in both."""
    first, second = masks(loss, **loop), masks(loss, **loop)
    rows = torch.cat([first, second])
    assert set(rows.unique().tolist()) <= {0.0, 1.0, 2.0}
    assert len(rows.unique(dim=0)) == len(rows) == 2 * RECORDS / 2


@pytest.mark.parametrize("rate", [1.0, 1e-300], ids=["all records", "no record"])
@pytest.mark.parametrize("seeds", [False, True])
def test_the_generator_goes_on_after_a_step_as_before_its_batch(rate: float, seeds: bool) -> None:
    torch.manual_seed(5)
    expected = [torch.rand(3) for _ in range(4)]
    with start(Records(seeds), steps=3, rate=rate) as run:
        torch.manual_seed(5)
        drawn = [torch.rand(3)]
        for batch in run.batches():
            for x in batch.microbatches(4):
                torch.rand(5)
                run.accumulate(masked, x)
            run.optimizer.step()
            drawn.append(torch.rand(3))
    assert all(map(torch.equal, drawn, expected))
