"""Private steps of noisette: by each engine, captured, compiled, and without clipping."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from benchmarks.steps import sgd
from noisette.capture.captured import Capture, CaptureWarning, schedule_of
from noisette.clipping.engines import BookKeeping
from noisette.core.clip import Engine
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.core.release import GaussianRelease, GradientBound
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.noise.device import CompiledNoise
from noisette.ranks import Alone
from noisette.ranks.joint_sums import JointSums
from noisette.run.per_example import PerExampleClip

F = nn.functional


def by_engine(engine: Callable[[], Engine]) -> sgd.Method:
    """Clipping by an engine, operation by operation; noise from the secret key, SGD."""
    return _clipped(engine, "eager")


def captured() -> sgd.Method:
    """Clipping as one graph of operations, without the Python between them; noise and SGD likewise."""
    return _clipped(BookKeeping, "graph")


def compiled() -> sgd.Method:
    """Clipping as one compiled graph; noise and SGD likewise."""
    return _clipped(BookKeeping, "compiled")


def _clipped(engine: Callable[[], Engine], capture: Capture) -> sgd.Method:
    def method(model: nn.Module, data: sgd.Data) -> sgd.Step:
        clip, batches = PerExampleClip(model, sgd.MAX_GRAD_NORM, engine=engine(), capture=capture), data.batches()
        return _private_step(clip, lambda: clip.accumulate(loss, *next(batches)), data.size, capture)

    return method


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one example."""
    return F.cross_entropy(model(x), y)


@contextmanager
def uncaptured_is_an_error() -> Iterator[None]:
    """Within it, a captured step that falls back to the eager one is an error, and no other warning is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns about the security of its noise
        warnings.filterwarnings("error", "the step (is not captured|runs uncompiled)", CaptureWarning)
        yield


def clipless(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """Bounds of a Lipschitz network instead of clipping, noise from the secret key, SGD, projection."""
    entropy, batches = TauCrossEntropy(tau=1.0), data.batches()
    bound = LipschitzBound(model, loss=entropy, input_shape=data.inputs.shape[1:])

    def one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return entropy(model(x), y)

    return _private_step(bound, lambda: bound.accumulate(one, *next(batches)), data.size, "eager")


def release_of(batch_size: int, capture: Capture) -> GaussianRelease:
    """The release of a step; its noise is compiled where ``capture`` asks for a compiled step."""
    key = SecretKey()
    noise = GaussianNoise(key, CompiledNoise(schedule_of(capture), lambda: 1.0))
    return GaussianRelease(key, sgd.NOISE_MULTIPLIER, batch_size, JointSums(noise.add_, Alone()))


def _private_step(bound: GradientBound, add: Callable[[], object], batch_size: int, capture: Capture) -> sgd.Step:
    """One step: ``add`` the batch to the bounded sum, then noise, SGD, and what the bound does after a step."""
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=sgd.LEARNING_RATE)
    release = release_of(batch_size, capture)
    names = {id(p): name for name, p in bound.parameters.items()}
    steps = itertools.count()

    def step() -> None:
        add()
        release(bound.pop_sums(), names, step=next(steps))
        optimizer.step()
        bound.after_step()
        optimizer.zero_grad()

    return step
