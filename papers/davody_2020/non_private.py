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

from noisette import BoundedSum
from noisette.accounting.calibrate import schedule
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease
from noisette.nn import convert_batch_norm, models
from noisette.training.build import outputs, public_examples
from papers import networks as networks  # which settings name
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
    released = noised_gradients(
        model,
        *examples,
        max_grad_norm=setting.clip,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        lot=setting.lot,
    )
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * (1 + math.cos(math.pi * step / steps)) / 2
        next(released)
        optimizer.step()
        optimizer.zero_grad()
        tell((step + 1) / steps, None)
    assert data.test is not None, "the data sets of the paper have test examples"
    inputs, at_once = torch.as_tensor(data.test.inputs, device=device), _TESTED_AT_ONCE // (1 + setting.public_examples)
    accuracy = float((outputs(model, inputs, at_once=max(1, at_once)).argmax(1) == data.test.targets).mean())
    return {
        "test_accuracy": accuracy,
        "steps": steps,
        "epsilon": None,
        "noise_multiplier": noise_multiplier,
        "seconds": round(time.perf_counter() - start, 1),
        "points": [[steps, accuracy]],
    }


def noised_gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    max_grad_norm: float,
    sampling_rate: float,
    noise_multiplier: float,
    lot: float,
    key: SecretKey | None = None,
) -> Iterator[None]:
    """Write the noised gradient of the cross-entropy of one Poisson batch to ``.grad`` at every iteration.

    The whole batch goes through the model in one call, and each loss is differentiated through everything that
    the examples share. One step costs as many backward passes of a batch as it has examples.

    Args:
        model: whose parameters are all trained.
        inputs: of the records, shape (records, ...).
        targets: their classes, shape (records,).
        sampling_rate: probability that a record is in a batch.
        max_grad_norm: the clipping norm.
        noise_multiplier: standard deviation of the noise in units of the clipping norm.
        lot: what the noised sum is divided by.
        key: secret source of batches and noise; a new one unless given.

    Source: the training of Davody et al. 2020, algorithm 1, whose stated guarantee does not hold.
    """
    key = key or SecretKey()
    sampler = PoissonSampler(size=len(inputs), sampling_rate=sampling_rate, key=key)
    release = GaussianRelease(key, noise_multiplier, lot)
    parameters = dict(model.named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    step = 0
    while True:
        drawn = torch.as_tensor(sampler.indices(step=step), device=inputs.device)
        total = clipped_sum(model, inputs[drawn], targets[drawn], max_grad_norm)
        release([BoundedSum(tuple(parameters.values()), tuple(total), max_grad_norm)], names, step=step)
        yield
        step += 1


def clipped_sum(model: nn.Module, inputs: Tensor, targets: Tensor, max_grad_norm: float) -> list[Tensor]:
    """The clipped gradients of the losses of a batch, added up for each parameter.

    Each gradient is that of one loss, through the statistics of the whole batch.
    """
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    if len(inputs) == 0:
        return total
    for loss in nn.functional.cross_entropy(model(inputs), targets, reduction="none"):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        factor = (max_grad_norm / nn.utils.get_total_norm(gradients)).clamp(max=1.0)
        for of_parameter, gradient in zip(total, gradients, strict=True):
            of_parameter.addcmul_(gradient, factor)
    return total
