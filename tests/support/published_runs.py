"""Two runs on data sets that differ by one record, with the same batches but for it and the same released values."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import noisette
from noisette import PrivacyError
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
                p.grad = torch.full_like(p, 0.01 * (1 + k + step))

    with monkeypatch.context() as patch:
        patch.setattr("noisette.ranks.SecretKey", partial(SecretKey, bytes(range(32))))
        patch.setattr(GaussianRelease, "__call__", release)
        yield


def train(
    model: nn.Module,
    *,
    records: int = SIZE,
    size: int = 4,
    loss: Callable[..., Tensor] | None = None,
    between: Callable[[int], None] = lambda step: None,
    checked: bool = False,
) -> nn.Module:
    """Train in microbatches of this size; the preflight, which would refuse some models earlier, only if asked."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    clip = noisette.PerExampleClip(model, 1.0)
    run = noisette.privatize(
        clip,
        optimizer,
        (X[:records], Y[:records]),
        sampling_rate=1.0,
        expected_batch_size=8,
        steps=STEPS,
        noise_multiplier=1.0,
        accountant=noisette.RdpAccountant(),
        separability="asserted",
    )
    if not checked:
        run._hooks.pop().remove()
    with run:
        for step, batch in enumerate(run.batches()):
            for x, y in batch.microbatches(size):
                run.backward(loss(model, x, y) if loss else F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
            between(step)
    return model


def train_until_refused(model: nn.Module, **settings: Any) -> bool:
    """Whether it was refused; the model then has what a caller who catches the error finds."""
    try:
        train(model, **settings)
    except PrivacyError:
        return True
    return False


def published(model: nn.Module) -> dict[str, Any]:
    """All that a pickle of the model would contain, by the way to it, without hooks and the graphs of tensors."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found[path] = value.detach().clone()
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            found[path] = torch.from_numpy(value.copy())
        elif isinstance(value, torch.Generator):
            found[path] = value.get_state()
        elif isinstance(value, bool | int | float | str | type(None)):
            found[path] = value
        elif isinstance(value, set):
            found[path] = sorted(map(repr, value))
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, Mapping):
                for name, entry in value.items():
                    if "hook" not in str(name):
                        walk(entry, f"{path}.{name}")
            elif isinstance(value, list | tuple | array | np.ndarray) or hasattr(value, "popleft"):
                for k, entry in enumerate(value):
                    walk(entry, f"{path}[{k}]")
            if isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not callable(value)):
                walk(vars(value), path)

    walk(model, "model")
    for name, value in model.state_dict().items():
        for k, leaf in enumerate(tree_flatten(value)[0]):
            found[f"state_dict {name} {k}"] = leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The ways at which two models differ."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(9), b.nan_to_num(9))
        return type(a) is type(b) and bool(a == b)

    return [path for path in sorted({*one, *other}) if not same(one.get(path, ...), other.get(path, ...))]
