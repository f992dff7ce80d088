"""Noise is compiled where that saves more than it costs, or where it was asked for, and never without a compiler."""

from typing import Any

import pytest
import torch
from torch import nn

import noisette
from noisette.capture.captured import schedule_of
from noisette.capture.graph import Graph, why_not_compiled
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.noise.device import COMPILED_TILES, CompiledNoise
from small_loop import start, take_steps

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, while it loads the compiled
MANY = 10**9


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    found: list[Graph] = []

    def compiled(graph: Graph, inputs: Any) -> Graph:
        found.append(graph)
        return graph

    monkeypatch.setattr(Graph, "compiled", compiled)
    return found


@pytest.mark.parametrize("capture", ["eager", "graph"])
def test_nothing_is_compiled_unasked(capture: str, made: list[Graph]) -> None:
    assert CompiledNoise(schedule_of(capture), lambda: 1e9).compiled(torch.float32, MANY) is None
    assert not made


def test_a_long_run_compiles_once(made: list[Graph]) -> None:
    source = CompiledNoise(schedule_of("auto"), lambda: 100.0)
    assert source.compiled(torch.float32, MANY) is not None
    assert source.compiled(torch.float32, MANY) is not None
    assert len(made) == len(COMPILED_TILES), "once for each size"


def test_without_a_compiler_noise_is_drawn_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOISETTE_COMPILE", "0")
    for capture in ("auto", "compiled"):
        source = CompiledNoise(schedule_of(capture), lambda: 1e9)
        assert source.compiled(torch.float32, MANY) is None
        assert source.compiled(torch.float32, MANY) is None
    one, two = torch.zeros(2, 10**5)
    GaussianNoise(SecretKey(bytes(32)), source).add_({"a": one}, step=0)
    GaussianNoise(SecretKey(bytes(32))).add_({"a": two}, step=0)
    assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 300])  # sums of several microbatches are in double precision
@pytest.mark.usefixtures("known_key")
@pytest.mark.skipif(why_not_compiled() is not None, reason="no compiler")
def test_a_run_with_compiled_noise_is_the_eager_run(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run under the same key: the same weights, up to rounding."""
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
        declared = {"sampling_rate": 0.2, "expected_batch_size": 60, "steps": 4}
        with start(model, (x, y), optimizer=optimizer, clip=clip, **declared) as run:
            take_steps(run, size=size)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert used == [True] * 4, "an eager run does not ask for quicker noise"
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
