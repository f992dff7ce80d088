"""The loop of the README, with its ledger on the disk and its Poisson batches, and beside it each of its parts."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import weakref
from pathlib import Path

import torch
from torch import nn

from benchmarks.steps import private, sgd
from noisette.accounting import Ledger, PoissonGaussian
from noisette.accounting.ledger import LedgerAccount, RecordedRun
from noisette.capture.captured import Capture
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.core.release import BoundedSum
from noisette.ranks import Alone
from noisette.run.loading import records_of
from noisette.run.per_example import PerExampleClip
from noisette.run.private import privatize

_STEPS = 1_000_000  # declared; so many are never taken
_SIZES = 100  # steps after which batches of most sizes have come, so that their graphs are compiled


def run(capture: Capture) -> sgd.Method:
    """Steps of a run: reserve, sample, load, clip, commit, add noise, and let the optimizer move the weights."""

    def method(model: nn.Module, data: sgd.Data) -> sgd.Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
        private_run = privatize(
            PerExampleClip(model, sgd.MAX_GRAD_NORM, capture=capture),
            optimizer,
            (data.inputs, data.targets),
            sampling_rate=data.sampling_rate,
            expected_batch_size=data.size,
            steps=_STEPS,
            noise_multiplier=sgd.NOISE_MULTIPLIER,
            ledger=_ledger(),
        )
        batches = private_run.batches()

        def step() -> None:
            for x, y in next(batches).microbatches(2 * data.size):
                private_run.accumulate(private.loss, x, y)
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(_SIZES if capture == "compiled" else 0):
            step()
        return step

    return method


def sample(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """The indices of a Poisson batch."""
    sampler, steps = PoissonSampler(len(data.targets), data.sampling_rate, SecretKey()), itertools.count()
    return lambda: _ignored(sampler.indices(step=next(steps)))


def load(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """The rows of a Poisson batch."""
    sampler = PoissonSampler(len(data.targets), data.sampling_rate, SecretKey())
    drawn = itertools.cycle([sampler.indices(step=step) for step in range(64)])
    gather = records_of((data.inputs, data.targets)).gather
    return lambda: _ignored(gather(next(drawn)))


def clip(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """The clipped sum of a batch of the expected size, by a compiled graph."""
    bound = PerExampleClip(model, sgd.MAX_GRAD_NORM, capture="compiled")
    inputs, targets = data.inputs[: data.size], data.targets[: data.size]

    def step() -> None:
        bound.accumulate(private.loss, inputs, targets)
        bound.pop_sums()

    return step


def noise(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """Noise on a sum, and its division."""
    params, steps = tuple(model.parameters()), itertools.count()
    release = private.release_of(data.size, "compiled")
    names = {id(p): name for name, p in model.named_parameters()}
    sums = [BoundedSum(params, tuple(map(torch.zeros_like, params)), sgd.MAX_GRAD_NORM)]
    return lambda: release(sums, names, step=next(steps))


def ledger(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """The lines of a step on the disk: its part of a reservation, and its commit."""
    event = PoissonGaussian(data.sampling_rate, sgd.NOISE_MULTIPLIER)
    paper = _ledger()
    account = LedgerAccount(paper, event, RecordedRun(), _ignored, Alone(), steps=_STEPS, steps_spent=0)
    steps = itertools.count()

    def step() -> None:
        taken = next(steps)
        account.reserve(taken, _STEPS - taken)
        account.commit()

    return step


def optimizer(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """SGD on gradients that are there."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    moves = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
    return lambda: _ignored(moves.step())


def _ledger() -> Ledger:
    """A ledger on the disk, in a folder that goes with it."""
    folder = tempfile.mkdtemp()
    opened = Ledger(Path(folder, "ledger.jsonl"))
    weakref.finalize(opened, shutil.rmtree, folder, ignore_errors=True)
    return opened


def _ignored(result: object) -> None: ...


METHODS: dict[str, sgd.Method] = {
    "run": run("compiled"),
    "run-eager": run("eager"),
    **{f"run: {part.__name__}": part for part in (sample, load, clip, noise, ledger, optimizer)},
}
