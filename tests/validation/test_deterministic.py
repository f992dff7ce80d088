"""Random numbers that are constants while a model is examined."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette import PerExampleClip, privatize
from noisette.validation.deterministic import EXTREME_LEVELS, LEVELS, DisableRandomness

SECONDS = 60


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A loop that never ends would hold up the whole suite; checks pass no error on that is no ``Exception``."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt(f"still running after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _accepted() -> Tensor:
    while not 0.3 < (drawn := torch.rand(1)) < 0.32:
        pass
    return drawn


def _two_that_differ() -> int:
    first = random.randrange(10)
    while (other := random.randrange(10)) == first:
        pass
    return other


LOOPS: dict[str, Callable[[], Any]] = {
    "sample": lambda: random.sample(range(50_000), 5),
    "betavariate": lambda: random.betavariate(2, 3),
    "gammavariate": lambda: random.gammavariate(0.5, 1),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "lognormvariate": lambda: random.lognormvariate(0, 1),
    "vonmisesvariate": lambda: random.vonmisesvariate(0, 4),
    "VonMises": lambda: torch.distributions.VonMises(torch.zeros(3), torch.ones(3)).sample().tolist(),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(5)).tolist(),
    "torch's numbers until one is accepted": lambda: _accepted().tolist(),
    "Python's numbers until two differ": _two_that_differ,
}


@pytest.mark.parametrize("level", [*LEVELS, *EXTREME_LEVELS])
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_that_draw_until_a_number_is_accepted_end(loop: str, level: float | None) -> None:
    with DisableRandomness(level) as constants:
        LOOPS[loop]()
    assert constants.used


@pytest.mark.parametrize("loop", [name for name in LOOPS if " " not in name])
def test_each_call_of_a_library_gives_the_same(loop: str) -> None:
    """So an example is treated alike alone and as one of a batch, for which a loop of the user's draws."""
    for level in LEVELS:
        with DisableRandomness(level):
            first, *others = [LOOPS[loop]() for _ in range(50)]
        assert all(other == first for other in others)


def test_many_choices_are_the_same() -> None:
    with DisableRandomness(0.25):
        assert set(random.choices(range(8), k=500)) == {2}
        assert [random.random() for _ in range(500)] == [0.25] * 500


class NegativeSampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 4)

    def forward(self, x: Tensor) -> Tensor:
        negatives = torch.tensor(random.sample(range(5000), 5))
        return (self.embedding(x)[:, None] * self.embedding(negatives)).sum((1, 2))


@pytest.mark.filterwarnings("ignore::noisette.core.one_by_one.OneByOneWarning")
@pytest.mark.parametrize("way", ["accumulate", "backward"])
def test_negative_sampling_trains(way: str) -> None:
    model = NegativeSampling()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with privatize(
        PerExampleClip(model, 1.0),
        optimizer,
        torch.arange(20),
        expected_batch_size=5,
        sampling_rate=0.25,
        steps=2,
        noise_multiplier=1.0,
        separability="asserted",
    ) as run:
        for batch in run.batches():
            for x in batch.microbatches(8):
                if way == "backward":
                    run.backward(F.softplus(model(x)))
                else:
                    run.accumulate(lambda model, x: F.softplus(model(x)).sum(), x)
            optimizer.step()
    assert run.steps_taken == 2
