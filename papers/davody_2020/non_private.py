"""Training with the paper's own batch norm: sampling, clipping and noise of private training, without its guarantee.

The mixture couples the examples of a batch, so one record moves the gradients of all others, and noise for one clipped
gradient does not hide that. There is no ledger and no accountant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from noisette import PerExampleClip, models
from noisette.accounting.sampling_plan import schedule
from noisette.clipping.engines import PerExampleLoop
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease
from noisette.nn import convert_batch_norm
from noisette.training.build import public_examples
from noisette.training.loop import evaluate
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm

if TYPE_CHECKING:
    from noisette.data import DataSet
    from papers.davody_2020.private import Private
    from papers.paper import Tell

_PUBLIC_SEED = 0  # which public examples are taken
_TESTED_AT_ONCE = 2000  # private and public examples in one call


def train(setting: Private, seed: int, data: DataSet, public: DataSet, tell: Tell) -> dict[str, Any]:
    """Train by the setting and measure the test accuracy at the end; the seed determines the first weights only."""
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = models.build(setting.model, data.train.inputs.shape[1:], data.classes).to(device)
    chosen = public_examples(public, examples=setting.public_examples, seed=_PUBLIC_SEED)
    convert_batch_norm(model, to=MixtureBatchNorm, public=chosen, private=torch.as_tensor(data.train.inputs))
    examples = [torch.as_tensor(part, device=device) for part in (data.train.inputs, data.train.targets)]
    sampling_rate, steps = schedule(setting.lot, None, None, data.declared_size, setting.epochs)
    noise_multiplier = setting.noise_multiplier(data.declared_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)
    clip = PerExampleClip(model, max_grad_norm=setting.clip, engine=PerExampleLoop())
    released = noised_gradients(
        clip, *examples, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, lot=setting.lot
    )
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * (1 + math.cos(math.pi * step / steps)) / 2
        next(released)
        optimizer.step()
        optimizer.zero_grad()
        tell((step + 1) / steps, None)
    clip.close()
    assert data.test is not None, "the data sets of the paper have test examples"
    test = [torch.as_tensor(part, device=device) for part in (data.test.inputs, data.test.targets)]
    accuracy = evaluate(model, *test, at_once=max(1, _TESTED_AT_ONCE // (1 + setting.public_examples)))
    return {
        "test_accuracy": accuracy,
        "steps": steps,
        "epsilon": None,
        "noise_multiplier": noise_multiplier,
        "seconds": round(time.perf_counter() - start, 1),
        "points": [[steps, accuracy]],
    }


def noised_gradients(
    clip: PerExampleClip,
    inputs: Tensor,
    targets: Tensor,
    *,
    sampling_rate: float,
    noise_multiplier: float,
    lot: float,
    key: SecretKey | None = None,
) -> Iterator[None]:
    """Write the noised gradient of the cross-entropy of one Poisson batch to ``.grad`` at every iteration.

    The whole batch goes through the model in one call, and ``clip`` needs an engine that differentiates the loss of
    each example through everything that the examples share: ``PerExampleLoop()`` or ``MultiLoss()``. One step costs as
    many backward passes of a batch as it has examples.

    Args:
        clip: clips the gradient of each example.
        inputs: of the records, shape (records, ...).
        targets: their classes, shape (records,).
        sampling_rate: probability that a record is in a batch.
        noise_multiplier: standard deviation of the noise in units of the clipping norm.
        lot: what the noised sum is divided by.
        key: secret source of batches and noise; a new one unless given.

    Source: the training of Davody et al. 2020, algorithm 1, whose stated guarantee does not hold.
    """
    key = key or SecretKey()
    sampler = PoissonSampler(size=len(inputs), sampling_rate=sampling_rate, key=key)
    release = GaussianRelease(key, noise_multiplier, lot)
    names = {id(p): name for name, p in clip.parameters.items()}
    step = 0
    while True:
        drawn = torch.as_tensor(sampler.indices(step=step), device=inputs.device)
        if len(drawn):
            scores = clip.model(inputs[drawn])
            clip.backward(nn.functional.cross_entropy(scores, targets[drawn], reduction="none"))
        release(clip.pop_sums(), names, step=step)
        yield
        step += 1
