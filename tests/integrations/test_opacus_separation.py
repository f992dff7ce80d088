"""Loops written for Opacus that prepare the batch, or look at it: each example's gradient is that of it alone."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from noisette.core.noise import GaussianNoise
from noisette.errors import PrivacyError
from noisette.integrations.opacus import PrivacyEngine

B, FEATURES = 7, 4
pytestmark = pytest.mark.filterwarnings("ignore:the loss of 3 public examples together", "ignore:std")

Loop = Callable[[Any, Tensor, Tensor], Tensor]


@pytest.fixture
def _no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    add = GaussianNoise.add_

    def add_little(self: GaussianNoise, tensors: Any, *, std: float = 1.0, **others: Any) -> None:
        add(self, tensors, std=std * 1e-13, **others)

    monkeypatch.setattr(GaussianNoise, "add_", add_little)


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, 3)


def private(
    records: Any, *, collate: Any = None, batch_size: int = B, public_size: int = B
) -> tuple[nn.Module, Any, Any, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(records, batch_size=batch_size, collate_fn=collate)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1e6,
        public_size=public_size,
    )
    return model, *made


def released(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    """The sum of the gradients that a loop releases, with no noise, for these records."""
    model, wrapped, optimizer, loader = private(TensorDataset(x, y))
    batch_x, batch_y = next(iter(loader))
    torch.manual_seed(1)
    loop(wrapped, batch_x, batch_y).backward()
    optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * B


def alone(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    """The same by plain autograd, one example after the other."""
    total = torch.zeros(sum(p.numel() for p in net().parameters()))
    for row, label in zip(x.split(1), y.split(1), strict=True):
        model = net()
        loop(model, row, label).backward()
        total += torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return total


def records(n: int = B) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(n, FEATURES, generator=draw) + 1, torch.randint(0, 3, (n,), generator=draw)


def cross_entropy_by_hand(model: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    scores = scores - scores.detach().max(1, keepdim=True).values
    return (scores.exp().sum(1).log() - scores[torch.arange(len(y)), y]).sum() / y.shape[0]


def one_hot_targets(model: Any, x: Tensor, y: Tensor) -> Tensor:
    targets = x.new_zeros(x.size(0), 3)
    targets[torch.arange(x.size(0)), y] = 1.0
    return -(model(x).log_softmax(1) * targets).sum() / x.size(0)


def in_place_on_the_batch(model: Any, x: Tensor, y: Tensor) -> Tensor:
    x = x * 1.0
    x -= 0.5
    x[:, 0] = 0.0
    x.clamp_(-1, 1)
    return F.cross_entropy(model(x), y)


def teacher(model: Any, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = torch.tanh(x)
        target = hidden.softmax(1)[:, :3]
    return F.mse_loss(model(x), target) + F.cross_entropy(model(x), y)


LOOPS: dict[str, Loop] = {
    "flattened": lambda m, x, y: F.cross_entropy(m(x.reshape(x.size(0), 2, 2).view(x.shape[0], -1)), y),
    "sum over size(0)": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / y.size(0),
    "sum over len": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / len(y),
    "times one over len": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") * (1 / len(y)),
    "computed lengths": lambda m, x, y: 2 * F.cross_entropy(m(x), y, reduction="sum") / (2 * x.shape[0] + 0.5 - 0.5),
    "converted": lambda m, x, y: F.cross_entropy(m(x.double().float().to("cpu")), y.int().long()),
    "noise of its own": lambda m, x, y: F.cross_entropy(m(x + 0 * torch.randn_like(x)), y),
    "by hand": cross_entropy_by_hand,
    "one hot by hand": one_hot_targets,
    "in place": in_place_on_the_batch,
    "teacher": teacher,
    "slices": lambda m, x, y: F.cross_entropy(m(torch.cat([x, x.flip(1)]))[: len(x)], y),
    "slices by size": lambda m, x, y: F.cross_entropy(m(torch.cat([x, x.flip(1)]))[x.size(0) :], y),
    "ones": lambda m, x, y: F.cross_entropy(m(x * torch.ones(len(x), 1)), y, weight=torch.ones(3)),
    "mask": lambda m, x, y: F.cross_entropy(m(torch.where(x > 0, x, 0.0)), y.clamp(max=1)),
}
COUPLED: dict[str, Loop] = {
    "centred": lambda m, x, y: F.cross_entropy(m(x - x.mean(0)), y),
    "standardised by the largest": lambda m, x, y: F.cross_entropy(m(x / x.abs().max()), y),
    "weights over the batch": lambda m, x, y: (lambda loss: (loss * (loss.detach() / loss.detach().sum())).sum())(
        F.cross_entropy(m(x), y, reduction="none")
    ),
    "centred targets": lambda m, x, y: F.mse_loss(m(x), x[:, :3] - x[:, :3].data.mean(0)),
    "class counts": lambda m, x, y: F.cross_entropy(m(x), y, weight=1 / (1 + F.one_hot(y, 3).sum(0).float())),
    "sorted": lambda m, x, y: F.cross_entropy(m(x.sort(0).values), y),
}


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("name", [*LOOPS, *COUPLED])
def test_each_example_is_computed_alone(name: str) -> None:
    loop = (LOOPS | COUPLED)[name]
    x, y = records()
    torch.testing.assert_close(released(loop, x, y), alone(loop, x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("name", COUPLED)
def test_one_record_moves_the_sum_by_its_own_gradient_alone(name: str) -> None:
    x, y = records()
    x[-1] = 50.0
    change = released(COUPLED[name], x, y) - released(COUPLED[name], x[:-1], y[:-1])
    torch.testing.assert_close(change, alone(COUPLED[name], x[-1:], y[-1:]), rtol=1e-3, atol=1e-4)


def mixed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(0.5 * x + 0.5 * x[torch.randperm(len(x))]), y)


def from_numpy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(torch.from_numpy(x.numpy() - x.numpy().mean(0))), y)


def from_an_array(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(torch.tensor(np.asarray(x) / np.asarray(x).max())), y)


def from_a_list(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), torch.tensor(sorted(y.tolist())))


def through_another_tensor(model: Any, x: Tensor, y: Tensor) -> Tensor:
    weights = torch.zeros(len(x))
    weights[:] = x.sum(1) / x.sum()
    return (F.cross_entropy(model(x), y, reduction="none") * weights).sum()


def a_part_of_the_batch(model: Any, x: Tensor, y: Tensor) -> Tensor:
    x[0].mul_(2)
    return F.cross_entropy(model(x), y)


def out_of_a_mask(model: Any, x: Tensor, y: Tensor) -> Tensor:
    rare = (y == 1).sum().item() + 1
    return F.cross_entropy(model(x), y) * torch.as_tensor(1.0).mul(x.sum() * 0 + 1) * (1 / rare)


def penalty(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + 0.1 * sum(p.square().sum() for p in model.parameters())


REFUSED: dict[str, tuple[Loop, str]] = {
    "mixed": (mixed, "made after the first batch"),
    "a neighbour": (lambda m, x, y: F.cross_entropy(m(x - x[1]), y), "by their position"),
    "numpy": (from_numpy, "made after the first batch"),
    "array": (from_an_array, "made after the first batch"),
    "list": (from_a_list, "made after the first batch"),
    "written elsewhere": (through_another_tensor, "made after the first batch"),
    "a part": (a_part_of_the_batch, "a part of a tensor of the batch"),
    "copied": (
        lambda m, x, y: F.cross_entropy(m(torch.tensor(x) - torch.tensor(x).mean(0)), y),
        "made after the first",
    ),
    "a copied number": (lambda m, x, y: F.cross_entropy(m(x / torch.tensor(x.max())), y), "made after the first"),
    "of another class": (
        lambda m, x, y: F.cross_entropy(m(x - x.as_subclass(Tensor).mean(0)), y),
        "made after the first",
    ),
    "dlpack": (lambda m, x, y: F.cross_entropy(m(torch.from_dlpack(x) / 2), y), "made after the first"),
    "weights in the loop": (
        lambda m, x, y: F.cross_entropy(m(x), y, weight=torch.tensor([1.0, 2.0, 3.0])),
        "Make a constant before the loop",
    ),
    "a penalty": (penalty, "use weight_decay"),
    "a count of a class": (out_of_a_mask, "a number that was read from the batch"),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    loop, says = REFUSED[name]
    _, wrapped, _, loader = private(TensorDataset(*records()))
    x, y = next(iter(loader))
    with pytest.raises(PrivacyError, match=says):
        loop(wrapped, x, y).backward()


def test_values_of_an_earlier_batch_enter_no_loss() -> None:
    _, wrapped, optimizer, loader = private(TensorDataset(*records(40)), batch_size=10, public_size=40)
    seen: list[Tensor] = []
    for x, y in loader:
        loss = F.cross_entropy(wrapped(x), y)
        if seen:
            with pytest.raises(PrivacyError, match="earlier batch"):
                (loss * seen[0].mean()).backward()
            return
        seen.append(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    pytest.fail("there were fewer than two batches")


def test_a_number_that_follows_the_number_of_examples_is_refused() -> None:
    _, wrapped, optimizer, loader = private(TensorDataset(*records(400)), batch_size=100, public_size=400)
    with pytest.raises(PrivacyError, match="follows the number of examples"):  # noqa: PT012
        for x, y in loader:
            (F.cross_entropy(wrapped(x), y, reduction="sum") / (2 * len(x))).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_what_loops_do_with_a_batch_is_harmless() -> None:
    """Totals, accuracies, histories and tables of errors are kept over the batches of a whole pass."""
    _, wrapped, optimizer, loader = private(TensorDataset(*records(400)), batch_size=40, public_size=400)
    right, seen, total, kept = 0, 0, torch.tensor(0.0), []
    table = torch.zeros(3, 3)
    for x, y in loader:
        scores = wrapped(x.view(x.size(0), -1))
        loss = F.cross_entropy(scores, y)
        loss.backward()
        right += (scores.argmax(1) == y).sum().item()
        seen += len(y)
        total += loss.detach()
        kept.append(float(loss))
        for a, b in zip(y.tolist(), scores.argmax(1).cpu().numpy(), strict=True):
            table[a, b] += 1
        assert x.shape[1:] == (FEATURES,)
        assert f"{loss:.3f}" == f"{loss.item():.3f}"
        optimizer.step()
        optimizer.zero_grad()
    assert 0 <= right / seen <= 1
    assert table.sum() == seen
    assert float(total) == pytest.approx(sum(kept), rel=1e-4)


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("kind", [dict, UserDict])
def test_batches_by_name(kind: Callable[[Any], Any]) -> None:
    x, y = records()

    def collate(rows: Any) -> Any:
        return kind({"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])})

    model, wrapped, optimizer, loader = private(TensorDataset(x, y), collate=collate)
    batch = next(iter(loader))
    F.cross_entropy(wrapped(batch["x"] - batch["x"].mean(0)), batch["y"]).backward()
    optimizer.step()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * B
    torch.testing.assert_close(found, alone(COUPLED["centred"], x, y), rtol=1e-4, atol=1e-5)
