"""Buffers and weights within a batch: what the loop writes is refused, and what the loss writes is dropped.

The truth is the clipped sum by plain autograd in double precision, one example at a time, each with the buffers that
the model had when the first records of the batch were read.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import OneByOneWarning, PerExampleClip, PrivacyError, PrivateRun, privatize

C, RECORDS, CLASSES = 0.3, 10, 3
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(RECORDS, 8, generator=GENERATOR, dtype=torch.float64)
X[-1] = 20.0  # a record whose values show wherever they are used
Y = torch.arange(RECORDS) % CLASSES
Loss = Callable[..., Tensor]


class Net(nn.Module):
    """A normaliser, prototypes of classes, a coefficient and a teacher, all of them read by the loss."""

    mean: Tensor
    prototypes: Tensor
    beta: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.teacher = nn.Linear(8, CLASSES).double(), nn.Linear(8, CLASSES).double()
        self.teacher.requires_grad_(False)
        self.register_buffer("mean", torch.full((8,), 0.1, dtype=torch.float64))
        self.register_buffer("prototypes", torch.zeros(CLASSES, CLASSES, dtype=torch.float64))
        self.register_buffer("beta", torch.zeros((), dtype=torch.float64))
        self.count = nn.Module()
        self.count.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x - self.mean)


def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    distilled = (scores - model.teacher(x)).square().sum()
    return F.cross_entropy(scores, y) + model.beta * distilled + (scores - model.prototypes[y]).square().sum()


def truth(model: nn.Module, loss: Loss = loss) -> Tensor:
    """The clipped sum over all records, as one vector."""
    total = torch.zeros(())
    for k in range(RECORDS):
        alone = copy.deepcopy(model)
        trained = [p for p in alone.parameters() if p.requires_grad]
        value = loss(alone, X[k : k + 1].clone(), Y[k : k + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, trained)])
        total = total + gradient * min(1.0, C / float(gradient.norm()))
    return total


def start(model: nn.Module, steps: int = 1, **clip: Any) -> PrivateRun:
    """All records in each batch, and next to no noise."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    declared = {"sampling_rate": 1.0, "expected_batch_size": 1, "steps": steps, "noise_multiplier": 1e-9}
    return privatize(
        PerExampleClip(model, C, **clip), optimizer, (X, Y), accountant=noisette.RdpAccountant(), **declared
    )


def released(run: PrivateRun) -> Tensor:
    return torch.cat([p.grad.flatten() for p in run.bound.parameters.values() if p.grad is not None])


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def check_same(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], value) for name, value in before.items())


# Written by the loop


@torch.no_grad()
def fit_the_normaliser(model: Any, x: Tensor, y: Tensor) -> None:
    model.mean.copy_(x.mean(0))


@torch.no_grad()
def move_the_prototypes(model: Any, x: Tensor, y: Tensor) -> None:
    model.prototypes.index_add_(0, y, model(x))


def note_a_number(model: Any, x: Tensor, y: Tensor) -> None:
    model.count.calls += float(x.sum())


def add_a_buffer(model: Any, x: Tensor, y: Tensor) -> None:
    model.count.register_buffer("mean", x.mean(0))


def delete_a_buffer(model: Any, x: Tensor, y: Tensor) -> None:
    if hasattr(model.count, "calls"):
        del model.count.calls


WRITES: dict[str, tuple[Callable[[Any, Tensor, Tensor], None], str]] = {
    "a normaliser is fitted": (fit_the_normaliser, "mean"),
    "prototypes of classes": (move_the_prototypes, "prototypes"),
    "a number of a part": (note_a_number, "count.calls"),
    "a new buffer": (add_a_buffer, "count.mean"),
    "a buffer less": (delete_a_buffer, "count.calls"),
}


@pytest.mark.parametrize(("write", "name"), WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("after", [False, True], ids=["before accumulate", "after accumulate"])
def test_a_buffer_that_the_loop_writes_is_named_and_put_back(
    write: Callable[[Any, Tensor, Tensor], None], name: str, after: bool
) -> None:
    model = Net()
    before, expected = state(model), truth(model)
    with start(model) as run:
        batch = next(run.batches())
        for x, y in batch.microbatches(4):
            if not after:
                write(model, x, y)
            run.accumulate(loss, x, y)
            if after:
                write(model, x, y)
        with pytest.raises(PrivacyError, match=f"^{name}: written between the first record of the batch"):
            run.optimizer.step()
        check_same(state(model), before)
        run.optimizer.step()  # the loss has computed without the write
        torch.testing.assert_close(released(run), expected, rtol=1e-7, atol=1e-7)


class Running(nn.Module):
    """Keeps a running mean in training mode, and subtracts it."""

    mean: Tensor

    def __init__(self, update: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.update = update
        self.body = nn.Linear(8, CLASSES).double()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("known", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.update(self, x.detach())
        return self.body(x - self.mean)


def in_place(self: Running, x: Tensor) -> None:
    self.mean.mul_(0.9).add_(0.1 * x.mean(0))


def by_another_tensor(self: Running, x: Tensor) -> None:
    self.mean = 0.9 * self.mean + 0.1 * x.mean(0)


def by_its_data(self: Running, x: Tensor) -> None:
    self.mean.data.lerp_(x.mean(0), 0.1)


def at_the_first_call(self: Running, x: Tensor) -> None:
    if not self.known:
        self.mean.copy_(x.mean(0))
        self.known.fill_(True)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("name", ["body.weight", "teacher.weight"], ids=["trained", "frozen"])
def test_a_weight_that_the_loop_writes_ends_the_run(name: str) -> None:
    model = Net()
    with start(model, steps=3) as run:
        batches = run.batches()
        for x, y in next(batches).microbatches(4):
            with torch.no_grad():
                model.get_parameter(name).add_(x.mean())
            run.accumulate(loss, x, y)
        for _ in range(2):  # the weights may hold values of records from here on
            with pytest.raises(PrivacyError, match=rf"^{name}: written between .* this run cannot go on"):
                run.optimizer.step()
        assert run.steps_taken == run.ledger.committed == 0


# Written by the loss


def keeps_a_label(self: Running, x: Tensor) -> None:
    """The value of an example as a number of Python, so that examples are computed one after the other."""
    if float(x.sum()) > -1e9:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))


ENGINES = noisette.engines
ONE_BY_ONE = [by_its_data, keeps_a_label]  # vmap takes neither
DROPPED = {  # pairs of a way to write and an engine
    in_place: ENGINES.BookKeeping(),
    by_another_tensor: ENGINES.Vmap(),
    at_the_first_call: ENGINES.ReweightGP(),
    by_its_data: ENGINES.BookKeeping(),
    keeps_a_label: ENGINES.PerExampleLoop(),
}


@pytest.mark.parametrize(("update", "engine"), DROPPED.items(), ids=[update.__name__ for update in DROPPED])
def test_what_the_loss_writes_is_dropped_and_reaches_no_other_example(
    update: Callable[[Any, Tensor], None], engine: Any
) -> None:
    model = Running(update)
    before = state(model)
    with start(model, steps=3, engine=engine) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore" if update in ONE_BY_ONE else "error", OneByOneWarning)
        for batch in run.batches():
            expected = truth(model, cross_entropy)
            for x, y in batch.microbatches(4):
                run.accumulate(cross_entropy, x, y)
            run.optimizer.step()
            torch.testing.assert_close(released(run), expected, rtol=1e-7, atol=1e-7)
            check_same(dict(model.named_buffers()), {name: before[name] for name, _ in model.named_buffers()})
            run.optimizer.zero_grad()
