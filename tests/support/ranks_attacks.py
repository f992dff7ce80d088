"""What an adversary made ranks do differently, or wrongly, and loops that are harmless."""

import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import small_loop
from model_cases import Forward
from noisette import AdaptiveClip, GroupwiseClipping, PerExampleClip, PrivateRun, Ranks, Users
from noisette.core.noise import GaussianNoise
from noisette.nn import PublicBatchNorm, convert_batch_norm
from ranks_loop import RECORDS, TERMS, loss, network, records

PATIENCE = 8.0


def other() -> bool:
    return dist.get_rank() == 1


def start(clip: PerExampleClip, optimizer: Any = None, data: Any = None, **given: Any) -> PrivateRun:
    declared = TERMS | {"sampling_rate": 0.3, "expected_batch_size": 18.0, "ranks": Ranks(timeout=PATIENCE)} | given
    return small_loop.start(clip.model, records() if data is None else data, optimizer=optimizer, clip=clip, **declared)


take = partial(small_loop.take_steps, size=5)


def order_of_records() -> None:
    x, y = records()
    take(start(PerExampleClip(network(), 0.5), data=(x.flip(0), y.flip(0)) if other() else (x, y)))


def statistics_of_batches() -> list[list[float]]:
    """Those of a public batch behind dropout, for each batch, on a rank whose generator has a seed of its own."""
    model, found = nn.Sequential(nn.Dropout(0.3), network()[0], nn.BatchNorm1d(7), nn.Linear(7, 2)).double(), []
    convert_batch_norm(model, to=PublicBatchNorm, public=records()[0][:9])
    run = start(PerExampleClip(model, 0.5))
    torch.manual_seed(dist.get_rank())
    for batch in run.batches():
        for x, y in batch.microbatches(5):
            run.accumulate(loss, x, y)
            if len(found) == run.steps_taken:
                found.append(model[2].running_mean.tolist())
        run.optimizer.step()
    return found


def a_shard_for_each() -> None:
    half = RECORDS // 2
    x, y = records()
    part = slice(half, None) if other() else slice(half)
    take(start(PerExampleClip(network(), 0.5), data=(x[part], y[part])))


def users_of_records() -> None:
    ids = np.arange(RECORDS) % 20 if other() else np.arange(RECORDS) // 3
    take(start(PerExampleClip(network(), 0.5), users=Users(ids.tolist(), 3)))


def adaptive_settings() -> None:
    take(start(PerExampleClip(network(), clipping=AdaptiveClip(0.1, learning_rate=5.0 if other() else 0.2))))


def groups_exchanged() -> None:
    bounds = {"0": 0.3, "1": 0.3, "3": 0.3}
    rule = GroupwiseClipping(dict(reversed(bounds.items())) if other() else bounds)
    take(start(PerExampleClip(network(), clipping=rule)))


def a_bound_moved() -> None:
    clip = PerExampleClip(network(), 0.5)
    run = start(clip)
    if other():
        clip.clipping = PerExampleClip(network(), 0.001).clipping
        clip._groups = None
    take(run)


def a_parameter_frozen() -> None:
    model = network()
    run = start(PerExampleClip(model, 0.5))
    if other():
        next(model.parameters()).requires_grad_(False)
    take(run)


def buffers() -> None:
    model = network()
    model.register_buffer("scale", torch.full((1,), 2.0 if other() else 1.0))
    take(start(PerExampleClip(model, 0.5)))


def optimizer_groups() -> None:
    model = network()
    first, *rest = model.parameters()
    sizes = [{"params": rest}, {"params": [first]}] if other() else [{"params": [first]}, {"params": rest}]
    take(start(PerExampleClip(model, 0.5), torch.optim.SGD(sizes, lr=0.1)))


def another_checkpoint(folder: Path) -> None:
    """Rank 1 goes on from a run with less noise."""
    for name, noise in (("first", 2.0), ("second", 0.3)):
        model = network()
        with start(PerExampleClip(model, 0.5), noise_multiplier=noise, ledger=folder / f"{name}.jsonl") as run:
            take(run, steps=1)
            run.save(folder / name)
    model, place = network(), folder / ("second" if other() else "first")
    take(PrivateRun.resume(place, PerExampleClip(model, 0.5), torch.optim.SGD(model.parameters(), lr=0.1), records()))


# By what the message calls it.
DIFFERENT = {
    "records than rank 0": (order_of_records, a_shard_for_each, users_of_records),
    "settings of the clipping rule": (adaptive_settings,),
    "groups of the clipping rule": (groups_exchanged,),
    "bounds, shares and parameters": (a_bound_moved, a_parameter_frozen),
    "values of buffers": (buffers,),
    "optimizer": (optimizer_groups,),
}


def error_in_a_release() -> float:
    """Rank 1 fails while its noise is drawn; how long does the other one wait?"""
    with pytest.MonkeyPatch.context() as patch:
        if other():
            patch.setattr(GaussianNoise, "add_", Mock(side_effect=MemoryError("planted")))
        begun = time.monotonic()
        with suppress(MemoryError, RuntimeError), start(PerExampleClip(network(), 0.5)) as run:
            take(run)
        return time.monotonic() - begun


def taken(*run: Any, size: int = 5, **given: Any) -> int:
    """The steps of a run to its end."""
    with start(*run, **given) as begun:
        take(begun, size=size)
    return begun.steps_taken


def a_wrapper_inside() -> int:
    """A part of the model is in ``DistributedDataParallel``, with a buffer that it would send in each call."""
    inside = network()
    inside.register_buffer("extra", torch.zeros(3))
    model = Forward(lambda m, x: m.part(x), part=DistributedDataParallel(inside))
    return taken(PerExampleClip(model, 0.5), size=1 if other() else 9)


def a_static_graph() -> int:
    return taken(PerExampleClip(DistributedDataParallel(network(), static_graph=True), 0.5))


def ranks_used_twice() -> int:
    ranks = Ranks(timeout=PATIENCE)
    return sum(taken(PerExampleClip(network(), 0.5), ranks=ranks) for _ in range(2))


def an_error_that_all_survive(folder: Path) -> int:
    """No checkpoint can be written, and the run goes on."""
    (folder / "file").touch()
    with start(PerExampleClip(network(), 0.5), ledger=folder / "ledger.jsonl") as run:
        while run.steps_left:
            take(run, steps=1)
            with suppress(OSError):
                run.save(folder / "file" / "checkpoint")
    return run.steps_taken


def numbers_as_tensors() -> int:
    model = network()
    return taken(
        PerExampleClip(model, 0.5), torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), betas=(0.8, 0.9))
    )


def all_harmless() -> dict[str, int]:
    """The steps of each harmless loop, one after the other."""
    return {work.__name__: work() for work in (a_wrapper_inside, a_static_graph, ranks_used_twice, numbers_as_tensors)}
