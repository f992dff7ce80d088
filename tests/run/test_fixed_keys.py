"""A given key gives the batches, the noise and the trained weights that were recorded once.

Words of the keystream, indices of batches and noise are compared exactly, by their SHA-256, on every machine. Weights
depend on the vector mathematics of the machine in the last places: after twenty steps they are compared within a
hundred thousandth. A weighted sum stands for the values that are not listed; it also changes when values change places.
"""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import noisette
from noisette.core.batches import PoissonSampler
from noisette.core.noise import GaussianNoise, SecretKey
from small_loop import start, take_steps

SECRET = bytes(range(32))
WORDS = "9b023db13bfc7ae775f57a441e6032c8c744f50d7a1119baa1715b7c1a01a32b"
BATCHES = "25093a4b00424ad16f36c92ffc00ea74dad5baf38f62866f850a1acebeda044b"
RUN_BATCHES = "220d49a524d80207bbef8857dbe69cae39d9f0858d76b448d7f2c17f78bb2e6d"
SIZES = [117, 92, 114, 92, 101, 88, 95, 132, 110, 105, 100, 96, 103, 95, 98, 107, 81, 91, 101, 97]
NOISE = {  # numbers of elements, the first values and their relative rounding, the digest of all
    torch.float32: (
        {"a": 1000, "b": 70_001},
        [2.0732064247131348, -2.4082188606262207, -1.7854981422424316, -0.9749087691307068],
        1e-6,
        "94e29c7e060ff03c4616efce847b4e07cef1a82acb817148f85c6875eb88d9cf",
    ),
    torch.float64: (
        {"a": 1000},
        [2.0732061616773554, -2.408218798242452, -1.7854976862796965, -0.9749084428210432],
        2e-15,
        "3153829a3a7e4e5f0526edeecaf876d2c75d4344f5e147b9eb1d15192f76f85d",
    ),
}
WEIGHTS = [0.05302005261182785, 0.059453606605529785, -0.1476203054189682, -0.07253099977970123]
WEIGHTED_SUM = -2.47792979
EPSILON = 3.591004919493571


def digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def test_words_of_the_keystream():
    words = np.empty(4096, dtype=np.uint64)
    SecretKey(SECRET).fill(words, purpose="noise", name="0.weight", step=3, start=5)
    assert digest(words) == WORDS


def test_poisson_batches():
    sampler = PoissonSampler(size=2000, sampling_rate=0.05, key=SecretKey(SECRET))
    batches = [sampler.indices(step=step) for step in range(20)]
    assert [len(batch) for batch in batches] == SIZES
    assert digest(np.concatenate(batches).astype(np.int64)) == BATCHES


@pytest.mark.parametrize("dtype", NOISE, ids=str)
def test_noise(dtype):
    sizes, first, rounding, whole = NOISE[dtype]
    tensors = {name: torch.zeros(size, dtype=dtype) for name, size in sizes.items()}
    GaussianNoise(SecretKey(SECRET)).add_(tensors, step=7, std=1.5)
    assert tensors["a"][:4].tolist() == pytest.approx(first, rel=rounding)
    assert digest(torch.cat([*tensors.values()]).numpy()) == whole


@pytest.mark.usefixtures("known_key")
@pytest.mark.parametrize("engine", [None, noisette.engines.PerExampleLoop()], ids=["default", "loop"])
def test_a_short_run(engine, monkeypatch):
    monkeypatch.setattr("noisette.core.release.ROUNDING", 0.0)  # the weights were recorded without this allowance
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1500, 64, generator=generator)
    targets = torch.randint(0, 10, (1500,), generator=generator)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    clip = {"max_grad_norm": 1.0, "engine": engine}
    declared = {"sampling_rate": 0.1, "expected_batch_size": 150, "steps": 20, "delta": 1e-5}
    run = start(model, (inputs, targets), optimizer=torch.optim.SGD(model.parameters(), lr=1.0), clip=clip, **declared)
    batches = [step.indices for step in take_steps(run, size=64)]
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert digest(np.concatenate(batches).astype(np.int64)) == RUN_BATCHES
    assert weights[:4].tolist() == pytest.approx(WEIGHTS, abs=1e-5)
    factors = (torch.arange(len(weights)) % 97 + 1).double() / 97
    assert float(weights.double() @ factors) == pytest.approx(WEIGHTED_SUM, abs=1e-4)
    assert run.epsilon(delta=1e-5) == pytest.approx(EPSILON, rel=1e-6)
