"""The boundary at a model's outputs: sums of clipped gradients as by a loop over single records with plain autograd."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from model_cases import Forward
from noisette import PrivacyError
from noisette.clipping.engines import OneByOneWarning, RecordedCall
from noisette.integrations.boundary import Boundary
from noisette.run.per_example import PerExampleClip
from oracle import clipped_sum
from small_loop import loss as cross_entropy

C = 0.3
LARGEST_MOVE = C * (1 + 2**-13)

Loss = Callable[[Any, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


class Run:
    """What a boundary needs of a run: clipped sums are added, and nothing is released."""

    steps_left = 1

    def __init__(self, clip: PerExampleClip) -> None:
        self.clip = clip

    def keep_seed_secret(self) -> None:
        pass

    def accumulate_recorded(self, calls: list[RecordedCall], scale: float) -> None:
        self.clip.accumulate_recorded(calls, scale)


class Private:
    def __init__(self, model: nn.Module, *, mean: bool = True) -> None:
        self.clip = PerExampleClip(model, C)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.boundary = Boundary(self.clip, self.optimizer, mean=mean)
        self.boundary.run = cast(Any, Run(self.clip))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.boundary.call(*args, **kwargs)

    def sums(self) -> list[Tensor]:
        self.optimizer.step()
        [found] = self.clip.pop_sums()
        return [sum.double() for sum in found.grads]


def by_boundary(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, mean: bool = True) -> list[Tensor]:
    private = Private(model, mean=mean)
    private.boundary.begin_records(len(x))
    loss(private, x, y).backward()
    try:
        assert all(p.grad is None for p in model.parameters())
        return private.sums()
    finally:
        private.clip.close()


def alone(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(clipped_sum(model, loss, (x, y), C).sums.values())


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm().clamp_min(1e-3)) for a, b in zip(one, other, strict=True))


def tied() -> nn.Module:
    def forward(m: Forward, ids: Tensor) -> Tensor:
        return F.linear(torch.tanh(m.hidden(m.embedding(ids))), m.embedding.weight)

    return Forward(forward, embedding=nn.Embedding(20, 8), hidden=nn.Linear(8, 8))


@dataclass
class Answer:
    scores: Tensor
    size: Tensor
    largest: Tensor
    name: str


def two_outputs() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Answer:
        hidden = torch.tanh(m.body(x))
        scores = m.scores(hidden)
        return Answer(scores, m.size(hidden), scores.argmax(1), "two outputs")

    return Forward(forward, body=nn.Linear(12, 8), scores=nn.Linear(8, 3), size=nn.Linear(8, 1))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def of_tokens(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def of_both(model: Any, x: Tensor, y: Tensor) -> Tensor:
    answer = model(x)
    assert (answer.name, answer.largest.shape) == ("two outputs", y.shape)
    return F.cross_entropy(answer.scores, y) + 0.5 * (answer.size.squeeze(1) - y).square().mean()


def of_two_calls(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + 0.1 * (model(x.flip(1)) - model(x)).square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Loss]] = {
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        lambda: torch.randn(9, 1, 8, 8),
        cross_entropy,
    ),
    "tied": (tied, lambda: torch.randint(0, 20, (9, 7)), of_tokens),
    "two outputs": (two_outputs, lambda: torch.randn(9, 12), of_both),
    "several calls": (mlp, lambda: torch.randn(9, 12), of_two_calls),
    "one record": (mlp, lambda: torch.randn(1, 12), cross_entropy),
}


@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_that_of_single_records(name: str) -> None:
    make, records, loss = CASES[name]
    model, x = make(), records()
    y = torch.randint(0, 3, (len(x),))
    assert distance(by_boundary(model, loss, x, y), alone(model, loss, x, y)) < 1e-10


def test_a_model_of_transformers_that_computes_its_loss() -> None:
    import small_trainer

    model = small_trainer.model().double().train()

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        found = model(input_ids=x, labels=y)
        assert found.loss.shape == ()
        assert found.logits is found["logits"]
        return found.loss

    x, y = torch.randint(0, 40, (6, 9)), torch.randint(0, 2, (6,))
    assert distance(by_boundary(model, loss, x, y), alone(model, loss, x, y)) < 1e-10


def test_a_batch_in_pieces() -> None:
    model, x, y = mlp(), torch.randn(9, 12), torch.randint(0, 3, (9,))
    private = Private(model)
    private.boundary.begin_records(9)
    for rows, labels in zip(x.split(4), y.split(4), strict=True):
        of_two_calls(private, rows, labels).backward()
    assert distance(private.sums(), alone(model, of_two_calls, x, y)) < 1e-10


def branches(m: Forward, x: Tensor) -> Tensor:
    m.calls += 1
    return m.one(x * m.calls) if x[0, 0] > 0 else m.other(x)


def test_what_cannot_be_vectorised_or_recorded_is_computed_one_by_one() -> None:
    model = Forward(branches, one=nn.Linear(12, 3), other=nn.Linear(12, 3), calls=torch.zeros(12))
    x, y = torch.randn(9, 12), torch.randint(0, 3, (9,))

    def anew(model: Any, x: Tensor, y: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return of_two_calls(lambda rows: functional_call(model, copy.deepcopy(buffers), (rows,)), x, y)

    expected = alone(model, anew, x, y)
    with pytest.warns(OneByOneWarning):
        found = by_boundary(model, of_two_calls, x, y)
    assert not any(buffer.any() for buffer in model.buffers())
    assert distance(found, expected) < 1e-10


@pytest.mark.parametrize(("mean", "scale"), [(True, 1.0), (True, 1e3), (False, 1e-3)])
def test_a_record_moves_the_sum_by_no_more_than_the_bound(mean: bool, scale: float) -> None:
    model = mlp().float()

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, label_smoothing=0.1, reduction="mean" if mean else "sum")

    for size in (2, 256, 257):
        x, y = scale * torch.randn(size, 12).float(), torch.randint(0, 3, (size,))
        x[-1] = 1e4 * torch.randn(12)
        whole, less = (by_boundary(model, loss, x[:n], y[:n], mean=mean) for n in (size, size - 1))
        assert torch.cat([(a - b).flatten() for a, b in zip(whole, less, strict=True)]).norm() <= LARGEST_MOVE


def test_a_record_without_a_finite_gradient_adds_nothing() -> None:
    model, x, y = mlp(), torch.randn(9, 12), torch.randint(0, 3, (9,))
    x[4, 0] = torch.inf
    kept = torch.arange(9) != 4
    assert distance(by_boundary(model, cross_entropy, x, y), alone(model, cross_entropy, x[kept], y[kept])) < 1e-10


def backward(private: Private, *pieces: tuple[Tensor, Tensor]) -> None:
    for rows, labels in pieces:
        cross_entropy(private, rows, labels).backward()


REFUSED: dict[str, Callable[[Private, Tensor, Tensor], Any]] = {
    "with 12 rows, where 6 records of": lambda m, x, y: backward(m, (torch.cat([x, x.flip(1)]), torch.cat([y, y]))),
    "4 rows, where 2 records of the batch are left": lambda m, x, y: backward(m, *[(x[:4], y[:4])] * 2),
    "after a call with": lambda m, x, y: (cross_entropy(m, x, y) + cross_entropy(m, x[:2], y[:2])).backward(),
    "no gradient of 2 records": lambda m, x, y: (backward(m, (x[:4], y[:4])), m.sums()),
    "of 3 records": lambda m, x, y: (F.cross_entropy(torch.cat([m(x[:3]), m(x[3:])]), y).backward(), m.sums()),
}


@pytest.mark.parametrize("says", REFUSED)
def test_each_record_belongs_to_its_step_once(says: str) -> None:
    private = Private(mlp())
    private.boundary.begin_records(6)
    with pytest.raises(PrivacyError, match=says):
        REFUSED[says](private, torch.randn(6, 12), torch.randint(0, 3, (6,)))


def test_a_loss_of_an_earlier_batch_is_refused() -> None:
    private, losses = Private(mlp()), []
    for _ in range(2):
        private.boundary.begin_records(6)
        losses.append(cross_entropy(private, torch.randn(6, 12), torch.randint(0, 3, (6,))))
    with pytest.raises(PrivacyError, match="earlier batch"):
        (losses[0] + losses[1]).backward()


def returning(what: str) -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Any:
        scores = m.layer(x)
        if what == "time first":
            return scores.unsqueeze(0).expand(2, -1, -1)
        return scores, m.scale.square() + (0 * scores if what == "rows" else 0)

    return Forward(forward, layer=nn.Linear(12, 3), scale=nn.Parameter(torch.ones(())))


def test_outputs_without_rows_are_refused() -> None:
    for what, says in (("time first", "transpose it"), ("weight", "on no record")):
        private = Private(returning(what))
        private.boundary.begin_records(6)
        with pytest.raises(PrivacyError, match=says):
            private(torch.randn(6, 12))
    private = Private(returning("rows"))
    private.boundary.begin_records(6)
    scores, scale = private(torch.randn(6, 12))
    assert scores.shape == scale.shape == (6, 3)
