"""Two runs on data sets that differ by one record, with the same batches but for it and the same released values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import noisette
from noisette.core.loss import Loss
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease

SIZE, FEATURES, CLASSES, STEPS = 9, 4, 3, 4
X = torch.randn(SIZE, FEATURES, generator=torch.Generator().manual_seed(7))
X[-1] = 30.0  # the record that only one of two runs has
Y = torch.arange(SIZE) % CLASSES


@contextmanager
def known_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The key of batches is known, and what is released does not depend on the sums."""

    def release(self: GaussianRelease, sums: Any, names: Mapping[int, str], *, step: int) -> None:
        for part in sums:
            for k, p in enumerate(part.params):
                p.grad = self._written[id(p)] = torch.full_like(p, 0.01 * (1 + k + step))

    with monkeypatch.context() as patch:
        patch.setattr("noisette.core.release.SecretKey", partial(SecretKey, bytes(range(32))))
        patch.setattr(GaussianRelease, "__call__", release)
        yield


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def run_of(model: nn.Module, records: int = SIZE, steps: int = STEPS) -> noisette.PrivateRun:
    """A run over all of so many records in each step."""
    return noisette.privatize(
        noisette.PerExampleClip(model, 1.0, capture="eager"),
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        (X[:records], Y[:records]),
        sampling_rate=1.0,
        expected_batch_size=8,
        steps=steps,
        noise_multiplier=1.0,
        accountant=noisette.RdpAccountant(),
    )


def train(
    model: nn.Module,
    *,
    records: int = SIZE,
    size: int = 4,
    loss: Loss = cross_entropy,
    between: Callable[[int], None] = lambda step: None,
) -> nn.Module:
    """Train in microbatches of this size; ``between`` is called after each step."""
    with run_of(model, records) as run:
        for step, batch in enumerate(run.batches()):
            for x, y in batch.microbatches(size):
                run.accumulate(loss, x, y)
            run.optimizer.step()
            between(step)
    return model


def published(model: nn.Module) -> dict[str, Any]:
    """Copies of all tensors of the state dict, which is what a run releases, and of buffers that are not in it."""
    found = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    for name, value in model.state_dict().items():
        for k, leaf in enumerate(tree_flatten(value)[0]):
            found[f"state_dict {name} {k}"] = leaf
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in found.items()}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The ways at which two models differ."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(9), b.nan_to_num(9))
        return type(a) is type(b) and bool(a == b)

    return [path for path in sorted({*one, *other}) if not same(one.get(path, ...), other.get(path, ...))]
