"""Noise is compiled where that saves more than it costs, or where it was asked for, and never without a compiler."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from noisette.capture.compiler import why_not
from torch import nn
from torch.nn import functional as F

import noisette
from noisette.capture.schedule import schedule_of
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.mechanisms import compiled_noise
from noisette.mechanisms.compiled_noise import CompiledNoise

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, while it loads the compiled
MANY = 10**9


class StandIn:
    """In the place of a compilation: says what was asked of it."""

    failure: str | None = None

    def __init__(self, *_: Any) -> None:
        self.was_kept = self.is_running = False
        self.asked: list[str] = []

    def start(self, *, at_full_speed: bool = False) -> None:
        self.is_running = True
        self.asked.append("at full speed" if at_full_speed else "in the background")

    def ready(self) -> None:
        self.asked.append("ready")

    def wait(self) -> str:
        self.asked.append("wait")
        return "compiled"

    def cancel(self) -> None:
        self.asked.append("cancel")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    found: list[StandIn] = []

    def make(*args: Any) -> StandIn:
        found.append(StandIn(*args))
        return found[-1]

    monkeypatch.setattr(compiled_noise, "Compilation", make)
    return found


@pytest.mark.parametrize("capture", ["eager", "graph"])
def test_nothing_is_compiled_unasked(capture: str, made: list[StandIn]) -> None:
    assert CompiledNoise(schedule_of(capture), lambda: 1e9).compiled(torch.float32, MANY) is None
    assert not made


def test_a_short_run_compiles_nothing(made: list[StandIn]) -> None:
    source = CompiledNoise(schedule_of("auto"), lambda: 50.0)
    assert [source.compiled(torch.float32, 10**5) for _ in range(40)] == [None] * 40
    assert not made


def test_a_long_run_compiles_in_the_background(made: list[StandIn]) -> None:
    source = CompiledNoise(schedule_of("auto"), lambda: 100.0)
    assert source.compiled(torch.float32, MANY) is None
    assert source.compiled(torch.float32, MANY) is None
    source.close()
    assert made[0].asked == ["in the background", "ready", "ready", "cancel"]


def test_compiled_is_waited_for(made: list[StandIn]) -> None:
    assert CompiledNoise(schedule_of("compiled"), lambda: 0.0).compiled(torch.float32, 1) == "compiled"
    assert made[0].asked == ["at full speed", "wait"]


def test_without_a_compiler_noise_is_drawn_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOISETTE_COMPILE", "0")
    monkeypatch.setenv("NOISETTE_CACHE", str(tmp_path))
    for capture in ("auto", "compiled"):
        source = CompiledNoise(schedule_of(capture), lambda: 1e9)
        assert source.compiled(torch.float32, MANY) is None
        assert source.compiled(torch.float32, MANY) is None
    one, two = torch.zeros(2, 10**5)
    GaussianNoise(SecretKey(bytes(32)), source).add_({"a": one}, step=0)
    GaussianNoise(SecretKey(bytes(32))).add_({"a": two}, step=0)
    assert torch.equal(one, two)


@pytest.mark.parametrize("size", [32, 300])  # sums of several microbatches are in double precision
@pytest.mark.skipif(why_not() is not None, reason="no compiler")
def test_a_run_with_compiled_noise_is_the_eager_run(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run under the same key: the same weights, up to rounding."""
    monkeypatch.setattr("noisette.ranks.SecretKey", partial(SecretKey, bytes(range(32))))
    used: list[int] = []
    real = CompiledNoise.__call__

    def call(source: CompiledNoise, *of_what: Any) -> Any:
        found = real(source, *of_what)
        used.append(found is not None)
        return found

    monkeypatch.setattr(CompiledNoise, "__call__", call)
    x, y = torch.randn(300, 128), torch.randint(0, 10, (300,))
    weights = []
    for schedule in (schedule_of("eager"), schedule_of("compiled")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(128, 200), nn.Tanh(), nn.Linear(200, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        clip = noisette.PerExampleClip(model, 1.0, capture="eager")
        clip.schedule = schedule
        run = noisette.privatize(
            clip, optimizer, (x, y), sampling_rate=0.2, expected_batch_size=60, steps=4, noise_multiplier=1, delta=1e-5
        )
        with run:
            for batch in run.batches():
                for a, b in batch.microbatches(size):
                    run.accumulate(lambda m, a, b: F.cross_entropy(m(a), b), a, b)
                optimizer.step()
                optimizer.zero_grad()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert used == [False] * 4 + [True] * 4
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
