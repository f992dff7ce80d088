"""Loops written for Opacus: the sums of single examples, one release a step, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import noisette
from noisette import PrivacyError
from noisette.core.noise import GaussianNoise
from noisette.integrations.opacus import PrivacyEngine

B, C = 6, 0.5


@pytest.fixture
def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    add = GaussianNoise.add_

    def add_little(self: GaussianNoise, tensors: Any, *, std: float = 1.0, **others: Any) -> None:
        add(self, tensors, std=std * 1e-8, **others)

    monkeypatch.setattr(GaussianNoise, "add_", add_little)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data(n: int = B) -> TensorDataset:
    return TensorDataset(torch.randn(n, 5), torch.randint(0, 3, (n,)))


def private(model: nn.Module, records: TensorDataset, **changed: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": C, "public_size": len(records)}
    loader = DataLoader(records, batch_size=changed.pop("batch_size", len(records)), shuffle=True)
    engine = PrivacyEngine()
    return engine, *engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **given | changed)


Loop = Callable[[Any, Tensor, Tensor], Tensor]


def in_steps(model: Any, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    scaled = logits / 2.0 + logits.abs().sum(1, keepdim=True)
    first, second = scaled.split([1, 2], dim=1)
    return F.nll_loss(torch.cat([second, first], dim=1).log_softmax(1), y)


def two_calls(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + 0.1 * model(x.flip(1)).square().mean()


def in_place(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss += 0.5 * model(x).square().mean()
    return loss


def weighted(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(model(x), y, reduction="none") * (1 + y)).mean()


LOOPS: list[Loop] = [
    lambda m, x, y: nn.CrossEntropyLoss()(m(x), y),
    lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), F.one_hot(y, 3).float()),
    lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    in_steps,
    two_calls,
    in_place,
    weighted,
]


@pytest.mark.parametrize("loop", LOOPS, ids=["mean", "binary", "smoothed", *(f.__name__ for f in LOOPS[3:])])
def test_gradients_are_those_of_single_examples(loop: Loop, little_noise: None) -> None:
    records = data()
    x, y = records.tensors
    total = {name: torch.zeros_like(p) for name, p in net().named_parameters()}
    for k in range(B):
        alone = net()
        loop(alone, x[k : k + 1], y[k : k + 1]).backward()
        gradients = {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
        norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, C / norm) / B
    model = net()
    engine, wrapped, optimizer, loader = private(model, records)
    for batch_x, batch_y in loader:
        optimizer.zero_grad()
        loss = loop(wrapped, batch_x, batch_y)
        assert isinstance(loss.item(), float)
        loss.backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, total[name], rtol=1e-4, atol=1e-6)
    assert engine.get_epsilon(1e-2) > 0


def test_a_whole_training_and_its_price() -> None:
    torch.manual_seed(0)
    model, records = net(), data(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(accountant="rdp")
    wrapped, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(records, batch_size=4),
        target_epsilon=4.0,
        target_delta=1e-2,
        epochs=3,
        max_grad_norm=1.0,
        public_size=40,
    )
    assert len(loader) == 10
    steps = 0
    for _ in range(4):  # one more than was paid for
        for x, y in loader:
            wrapped.zero_grad()
            output = wrapped(x)
            assert output.argmax(1).shape == y.shape
            assert output.detach().numpy().shape == (len(x), 3)
            F.cross_entropy(output, y).backward()
            optimizer.step()
            steps += 1
    assert 20 < steps <= 30  # empty batches are released by the loader
    assert 3.5 < engine.get_epsilon(1e-2) <= 4.0
    wrapped.eval()
    assert type(wrapped(records.tensors[0])) is Tensor
    assert set(wrapped.state_dict()) == {f"_module.{name}" for name in model.state_dict()}


def test_empty_batches_are_released() -> None:
    model, records = net(), data(4)
    engine, wrapped, optimizer, loader = private(model, records, batch_size=1)
    for _ in range(5):
        for x, y in loader:
            F.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
    assert engine._run is not None
    assert engine._run.steps_taken == 20


def test_a_skipped_batch_and_a_loss_of_it_are_refused() -> None:
    _, wrapped, optimizer, loader = private(net(), data())
    next(iter(loader))
    with pytest.raises(PrivacyError, match="not called for the last batch"):
        next(iter(loader))
    _, wrapped, optimizer, loader = private(net(), data(), batch_size=B)
    batches = iter(loader)
    x, y = next(batches)
    loss = F.cross_entropy(wrapped(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(PrivacyError, match="bounded before"):
        loss.backward()


def released(records: TensorDataset, step: Callable[[Any, Tensor, Tensor], None], **changed: Any) -> list[Tensor]:
    """The gradients that one step of a loop releases, with hardly any noise."""
    model = net()
    _, wrapped, optimizer, loader = private(model, records, **changed)
    x, y = next(iter(loader))
    step(wrapped, x, y)
    optimizer.step()
    return [p.grad for p in model.parameters() if p.grad is not None]


def alone(records: TensorDataset, loss: Loop) -> list[Tensor]:
    """The same by plain autograd, one record after the other."""
    model = net()
    parameters, rows = list(model.parameters()), list(zip(*[t.split(1) for t in records.tensors], strict=True))
    total = [torch.zeros_like(p) for p in parameters]
    for row, label in rows:
        gradients = torch.autograd.grad(loss(model, row, label), parameters)
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        for sum, gradient in zip(total, gradients, strict=True):
            sum += gradient * min(1.0, C / norm) / len(rows)
    return total


def close(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("little_noise")
def test_a_batch_in_pieces_and_a_loss_that_adds_up() -> None:
    def in_pieces(model: Any, x: Tensor, y: Tensor) -> None:
        for rows, labels in zip(x.split(4), y.split(4), strict=True):
            F.cross_entropy(model(rows), labels).backward()

    def added_up(model: Any, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y, reduction="sum").backward()

    records = data()
    close(released(records, in_pieces), alone(records, LOOPS[0]))
    close(released(records, added_up, loss_reduction="sum"), alone(records, LOOPS[0]))


def test_after_the_last_step_the_model_is_itself() -> None:
    model, records = net(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, _, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(records, batch_size=B),
        target_epsilon=4.0,
        target_delta=1e-2,
        epochs=1,
        max_grad_norm=C,
        public_size=B,
    )
    for x, y in loader:
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    F.cross_entropy(wrapped(records.tensors[0]), records.tensors[1]).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_masks_are_secret() -> None:
    """Also where the loop seeds torch's generator."""
    masks = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5))
        _, wrapped, _, loader = private(model, data())
        x, _ = next(iter(loader))
        torch.manual_seed(0)
        masks.append(wrapped(x) == 0)
    assert not torch.equal(*masks)


def test_all_problems_at_once() -> None:
    model, records = net(), data()
    with pytest.raises(ValueError) as raised:
        private(
            model,
            records,
            public_size=None,
            batch_first=False,
            loss_reduction="none",
            poisson_sampling=False,
            noise_generator=torch.Generator(),
            clipping="none",
        )
    for words in ("public_size=", "batch_first", "loss_reduction", "poisson_sampling", "noise_generator", "clipping"):
        assert words in str(raised.value)
    with pytest.raises(ValueError, match="accountant"):
        PrivacyEngine(accountant="none")
    with pytest.raises(PrivacyError, match="make_private first"):
        PrivacyEngine().get_epsilon(1e-5)
    assert noisette.PrivacyError is PrivacyError
