"""Random numbers of torch have a secret seed within a batch, and the generators go on as before after it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivateRun, privatize
from noisette.core.steps import seed_torch

X = torch.ones(4, 3, dtype=torch.float64)


def run_of(model: nn.Module, steps: int = 3) -> PrivateRun:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"sampling_rate": 1.0, "expected_batch_size": 4, "noise_multiplier": 1e-9}
    return privatize(PerExampleClip(model, 1e3, capture="eager"), optimizer, (X,), steps=steps, **settings)


def masked(model: nn.Module, x: Tensor) -> Tensor:
    return model(x * torch.rand(3, dtype=x.dtype)).sum()


def released(seed: int, *, seeds_within: bool = False) -> list[Tensor]:
    """The masks of three steps, as the gradients of a linear model tell them."""
    model = nn.Linear(3, 1, bias=False).double()
    found = []
    with run_of(model) as run:
        torch.manual_seed(seed)
        for batch in run.batches():
            for (x,) in batch.microbatches(4):
                if seeds_within:
                    torch.manual_seed(seed)
                run.accumulate(masked, x)
            run.optimizer.step()
            assert model.weight.grad is not None
            found.append(model.weight.grad.clone())
    return found


@pytest.mark.parametrize("seeds_within", [False, True])
def test_masks_do_not_follow_from_a_seed_of_the_loop(seeds_within: bool) -> None:
    one, other = (released(5, seeds_within=seeds_within) for _ in range(2))
    masks = torch.cat(one + other)
    assert len(masks[:, 0].unique()) == 6


def test_the_generators_go_on_after_a_step_as_if_there_had_been_none() -> None:
    model = nn.Linear(3, 1).double()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with run_of(model) as run:
        for k, batch in enumerate(run.batches()):
            for (x,) in batch.microbatches(2):
                run.accumulate(masked, x)
            run.optimizer.step()
            assert torch.rand(1) == expected[k]


def test_all_bits_of_a_long_seed_count() -> None:
    """``torch.manual_seed`` uses 32 bits on a processor, so few that others could try them."""
    states = []
    for seed in (7, 7 + 2**64, 7 + 2**200, 7 + 2**64):
        seed_torch(seed)
        states.append(torch.rand(4))
    assert torch.equal(states[1], states[3])
    assert len({tuple(state.tolist()) for state in states}) == 3
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4), states[0]), "a short one is that of torch"
