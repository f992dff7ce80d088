"""Loops written for Opacus: the sums of single examples, one release a step, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import register_pytree_node
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


def coupled(model: Any, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    return F.cross_entropy(logits - logits.mean(0), y) + logits.square().mean()


LOOPS: list[Loop] = [
    lambda m, x, y: nn.CrossEntropyLoss()(m(x), y),
    lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), F.one_hot(y, 3).float()),
    lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    in_steps,
    two_calls,
    in_place,
    weighted,
    coupled,
]


@pytest.mark.filterwarnings("ignore:the loss of 3 public examples together")  # of the coupled loop
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


class Answer(dict[str, Tensor]):
    """What some libraries' models return."""

    @property
    def loss(self) -> Tensor:
        return self["loss"]


register_pytree_node(
    Answer,
    lambda answer: (list(answer.values()), list(answer)),
    lambda values, names: Answer(zip(names, values, strict=True)),
)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, labels: Tensor) -> Answer:
        logits = self.net(x)
        return Answer(loss=F.cross_entropy(logits, labels), logits=logits)


def test_a_loss_that_the_model_returns(little_noise: None) -> None:
    records = data()
    direct, inside = net(), WithLoss()
    for model, loop in ((direct, LOOPS[0]), (inside, lambda m, x, y: m(x, labels=y).loss)):
        _, wrapped, optimizer, loader = private(model, records)
        for x, y in loader:
            loop(wrapped, x, y).backward()
            optimizer.step()
    for one, other in zip(direct.parameters(), inside.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


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


def test_a_skipped_batch_and_a_second_backward_are_refused() -> None:
    _, wrapped, _, loader = private(net(), data())
    next(iter(loader))
    with pytest.raises(PrivacyError):
        next(iter(loader))
    _, wrapped, _, loader = private(net(), data())
    x, y = next(iter(loader))
    F.cross_entropy(wrapped(x), y).backward()
    with pytest.raises(PrivacyError):
        F.cross_entropy(wrapped(x), y).backward()


def test_other_gradients_are_refused() -> None:
    _, wrapped, _, loader = private(net(), data())
    x, y = next(iter(loader))
    with pytest.raises(PrivacyError, match="without arguments"):
        F.cross_entropy(wrapped(x), y, reduction="none").backward(torch.ones(len(x)))
    with pytest.raises(PrivacyError):
        F.cross_entropy(wrapped(torch.randn(2 * len(x), 5)), torch.zeros(2 * len(x), dtype=torch.long)).backward()


@pytest.mark.filterwarnings("ignore:the loss of 3 public examples together")  # a mean by weights
def test_weights_of_classes_are_no_rows_whatever_the_size_of_the_batch() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])
    for size in (2, 3, 4):
        model = net()
        _, wrapped, optimizer, loader = private(model, data(size))
        for x, y in loader:
            F.cross_entropy(wrapped(x), y, weight=weights).backward()
            optimizer.step()
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    "enters",
    [
        lambda loss: loss / loss.item(),
        lambda loss: loss * (1 - 2 * loss.item() / 3),
        lambda loss: torch.mul(loss, -sum([loss.item()])),
    ],
)
def test_a_number_of_the_batch_enters_no_loss(enters: Callable[[Tensor], Tensor]) -> None:
    _, wrapped, _, loader = private(net(), data())
    x, y = next(iter(loader))
    loss = F.cross_entropy(wrapped(x), y)
    assert f"{loss.item():.2f}" == f"{loss.detach():.2f}"
    with pytest.raises(PrivacyError, match="read from the batch"):
        enters(loss)


def test_all_problems_at_once() -> None:
    model, records = net(), data()
    with pytest.raises(ValueError) as raised:
        private(
            model,
            records,
            public_size=None,
            batch_first=False,
            loss_reduction="sum",
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
