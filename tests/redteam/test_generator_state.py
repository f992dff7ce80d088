"""Random numbers of torch within a batch are secret, and the state of its generator afterwards tells nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import noisette
from noisette.core.steps import seed_secretly
from published_runs import (
    CLASSES,
    FEATURES,
    SIZE,
    STEPS,
    X,
    Y,
    cross_entropy,
    differences,
    known_release,
    published,
    run_of,
    train,
)


@pytest.fixture(autouse=True)
def _known_release(monkeypatch: pytest.MonkeyPatch):
    with known_release(monkeypatch):
        yield


class Draws(nn.Module):
    """Calls ``draw(x)`` in each forward pass."""

    def __init__(self, draw: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(FEATURES, CLASSES), draw

    def forward(self, x: Tensor) -> Tensor:
        self.draw(x)
        return self.layer(x)


DRAWS: dict[str, Callable[[Tensor], object]] = {
    "dropout": lambda x: F.dropout(x),
    "numbers": lambda x: torch.rand(3),
    "numbers that depend on a record": lambda x: torch.rand(int(2 + x.abs().sum() % 3)),
    "a seed": lambda x: torch.manual_seed(5),
}


def after_each_step(draw: Callable[[Tensor], object], **change: int) -> list[dict[str, Any]]:
    torch.manual_seed(5)
    model, found = Draws(draw), list[dict[str, Any]]()
    train(model, between=lambda step: found.append({"torch": torch.get_rng_state()} | published(model)), **change)
    return found


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_generator_does_not_tell_the_batch(draw: Callable[[Tensor], object]) -> None:
    first, *others = [
        after_each_step(draw, **change) for change in ({}, {"records": SIZE - 1}, {"size": 1}, {"records": 0})
    ]
    assert len(first) == STEPS
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert differences(one, two) == []


def seeds_of_a_run(between: Callable[[], object] = lambda: None, data: Any = (X, Y), **loading: Any) -> list[int]:
    """The seed of torch's generator in each call of the loss, in a program that is seeded as every other one is."""
    drawn: list[int] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn.append(torch.initial_seed())
        return cross_entropy(model, x, y)

    torch.manual_seed(5)
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    declared: dict[str, Any] = {"sampling_rate": 1.0, "expected_batch_size": 8, "noise_multiplier": 1.0, "steps": STEPS}
    clip = noisette.PerExampleClip(model, 1.0, capture="eager")
    with noisette.privatize(clip, optimizer, data, **declared, accountant=noisette.RdpAccountant()) as run:
        for batch in run.batches(**loading):
            for x, y in batch.microbatches(3):
                between()
                run.accumulate(loss, x, y)
            optimizer.step()
    assert len(drawn) == STEPS * 3
    return drawn


def test_who_knows_the_seed_of_a_program_does_not_know_the_masks() -> None:
    """If others could compute masks and views, one record more would move those of all records behind it."""
    assert not set(seeds_of_a_run()) & set(seeds_of_a_run())


def test_each_step_has_a_seed_of_its_own() -> None:
    assert len(set(seeds_of_a_run())) == STEPS


def test_a_seed_still_repeats_what_is_drawn_between_steps() -> None:
    first, second = ([state["torch"] for state in after_each_step(DRAWS["dropout"])] for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_a_loop_that_seeds_each_microbatch_has_secret_masks_all_the_same() -> None:
    assert 5 not in seeds_of_a_run(lambda: torch.manual_seed(5))


class Seeding(Dataset[tuple[Tensor, Tensor]]):
    """Seeds torch for each of its records."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(index)
        return X[index] + torch.rand(()), Y[index]


def test_a_data_set_that_seeds_torch_leaves_secret_masks() -> None:
    assert not set(seeds_of_a_run(data=Seeding(), ahead=0)) & set(range(SIZE))


def test_the_release_of_another_run_within_a_batch_leaves_secret_seeds() -> None:
    """It gives the generators their state from before its own batch, which may have been a public one."""
    used: list[int] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        used.append(torch.initial_seed())
        return cross_entropy(model, x, y)

    with run_of(nn.Linear(FEATURES, CLASSES)) as one, run_of(nn.Linear(FEATURES, CLASSES)) as other:
        for batch, second in zip(one.batches(), other.batches(), strict=True):
            for x, y in batch.microbatches(4):
                one.accumulate(loss, x, y)
            for k, (x, y) in enumerate(second.microbatches(4)):
                if k == 1:
                    one.optimizer.step()
                    restored = torch.initial_seed()
                    assert restored not in used[-1:]
                    other.accumulate(loss, x, y)
                    assert restored != used[-1]
                else:
                    other.accumulate(loss, x, y)
            other.optimizer.step()
    assert len(set(used)) == 3 * STEPS


def test_secret_seeds_are_too_many_to_be_tried() -> None:
    """Of a seed of 256 bits torch itself would use 32; here states differ wherever the seeds do."""
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbits", lambda bits: asked.append(bits) or 2 ** (bits - 1) + 5)
        seed_secretly()
        one = torch.get_rng_state()
        patch.setattr("secrets.randbits", lambda bits: 2 ** (bits - 1) + 2 ** (bits - 9) + 5)
        seed_secretly()
    assert asked == [256]
    assert not torch.equal(one, torch.get_rng_state())


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python", "NumPy"])
def test_records_of_a_microbatch_share_no_number_of_other_generators(draw: Callable[[], float]) -> None:
    """Which ones share it would depend on how many come before, so one record more would move all behind it."""
    rows = torch.eye(SIZE, dtype=torch.float64)
    model = nn.Linear(SIZE, 1, bias=False, dtype=torch.float64)
    clip = noisette.PerExampleClip(model, 10.0)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * (1 + draw())

    with pytest.warns(noisette.OneByOneWarning, match=r"share the numbers; draw them by torch"):
        clip.accumulate(loss, rows)
    [found] = clip.pop_sums()
    assert len(set(found.grads[0].flatten().tolist())) == SIZE


def test_numbers_of_torch_are_the_remedy() -> None:
    rows = torch.eye(SIZE, dtype=torch.float64)
    clip = noisette.PerExampleClip(nn.Linear(SIZE, 1, bias=False, dtype=torch.float64), 10.0)
    clip.accumulate(lambda model, x: model(x).sum() * (1 + torch.rand(())), rows)
    [found] = clip.pop_sums()
    assert len(set(found.grads[0].flatten().tolist())) == SIZE
