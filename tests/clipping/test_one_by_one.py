"""Losses that cannot be vectorised: each example in a call of its own, and nothing of one is left for the next."""

from __future__ import annotations

import random
import struct
import warnings
from array import array
from collections import UserList, deque
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import noisette
from noisette import FlatClipping, GroupwiseClipping, Ledger, OneByOneWarning, PerExampleClip, PrivacyError
from noisette.core.clip import ClippingRule
from oracle import example_gradients

Loss = Callable[..., Tensor]


class Cube(torch.autograd.Function):
    """Without a rule for ``vmap``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        [x] = ctx.saved_tensors
        return 3 * x**2 * dy


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(b: int = 5) -> Tensor:
    return torch.randn(b, 3, dtype=torch.float64)


def remembering(model: nn.Module, x: Tensor) -> Tensor:
    """Values in a table made in the call, as a model that caches does within one call."""
    table = torch.zeros(3, dtype=x.dtype)
    table[x[0] > 0] = 1.0
    return (model(x) * table[:2]).square().sum() * (1 + x.nonzero().shape[0])


SINGLE: dict[str, Loss] = {
    "branch on a value": lambda m, x: (m(x) if x.sum() > 0 else m(-2 * x)).square().sum(),
    "item": lambda m, x: m(x).square().sum() * x.sum().item(),
    "one value for all": lambda m, x: m(x).square().sum() * (2.0 if torch._is_any_true(x > 1) else 1.0),
    "tolist": lambda m, x: m(x).square().sum() * sum(x[0].tolist()),
    "numpy": lambda m, x: m(x).square().sum() * float(x.detach().numpy().sum()),
    "nonzero": lambda m, x: m(x).square().sum() * (x > 0).nonzero().shape[0],
    "unique": lambda m, x: m(x).square().sum() * x.unique().shape[0],
    "boolean selection": lambda m, x: m(x)[x[:, :2] > 0].square().sum(),
    "autograd function": lambda m, x: Cube.apply(m(x)).square().sum(),
    "inner gradient": lambda m, x: torch.autograd.grad(
        m(z := x.clone().requires_grad_()).sum(), z, create_graph=True
    )[0].square().sum() + m(x).sum(),
    "one layer for some": lambda m, x: m(x).square().sum() if x[0, 0] > 0 else m[0](x).square().sum(),
    "table": remembering,
}  # fmt: skip


@pytest.fixture
def expected_warning() -> Iterator[None]:
    with pytest.warns(OneByOneWarning, match="in a call of its own"):
        yield


def summed(model: nn.Module, loss: Loss, *batches: Tensor, clipping: ClippingRule | None = None) -> dict[str, Tensor]:
    clip = PerExampleClip(model, clipping=clipping or FlatClipping(0.5))
    try:
        for x in batches:
            clip.accumulate(loss, x)
        found = clip.pop_sums()
    finally:
        clip.close()
    names = {id(p): name for name, p in clip.parameters.items()}
    return {names[id(p)]: grad for part in found for p, grad in zip(part.params, part.grads, strict=True)}


def each(loss: Loss) -> Loss:
    """The losses of a batch, one call for each example."""
    return lambda model, x: torch.stack([loss(model, row.unsqueeze(0)) for row in x])


@pytest.mark.parametrize("name", SINGLE)
def test_sums_are_those_of_single_examples(name: str, expected_warning: None) -> None:
    x, loss = rows(6), SINGLE[name]
    x[0], x[1] = x[0].abs(), -x[1].abs()
    truth = example_gradients(net(), each(loss), (x,)).clipped(0.5)
    found = summed(net(), loss, x[:4], x[4:])
    for parameter, expected in truth.sums.items():
        torch.testing.assert_close(found[parameter], expected, rtol=1e-9, atol=1e-12)


def test_groups_are_clipped_each_by_its_norm(expected_warning: None) -> None:
    x, loss = rows(), SINGLE["item"]
    clipping = GroupwiseClipping({"0": 0.1, "2": 0.2})
    found = summed(net(), loss, x, clipping=clipping)
    for group, bound in (("0.", 0.1), ("2.", 0.2)):
        total: dict[str, Tensor] = {}
        for row in x:
            model = net()
            loss(model, row.unsqueeze(0)).backward()
            gradients = {n: p.grad for n, p in model.named_parameters() if n.startswith(group) and p.grad is not None}
            norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
            for n, g in gradients.items():
                total[n] = total.get(n, torch.zeros_like(g)) + g * min(1, bound / float(norm))
        for n, expected in total.items():
            torch.testing.assert_close(found[n], expected, rtol=1e-9, atol=1e-12)


def test_a_record_that_is_not_finite_is_left_out(expected_warning: None) -> None:
    x, loss = rows(4), SINGLE["branch on a value"]
    bad = x.clone()
    bad[1], bad[3] = torch.nan, torch.inf
    found, without = summed(net(), loss, bad), summed(net(), loss, x[[0, 2]])
    for name, expected in without.items():
        torch.testing.assert_close(found[name], expected)


def test_an_example_whose_loss_reaches_no_parameter_adds_nothing(expected_warning: None) -> None:
    x = rows(4)
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = summed(net(), lambda m, x: m(x).square().sum() if x[0, 0] > 0 else x.sum(), x)
    truth = example_gradients(net(), lambda m, x: m(x).square().sum(1), (x[::2],)).clipped(0.5)
    for name, expected in truth.sums.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-12)


def test_it_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        summed(net(), SINGLE["item"], rows(), rows(), rows())
    assert [warning.category for warning in said] == [OneByOneWarning]
    assert "as a Python number" in str(said[0].message)


kept: dict[str, float] = {"last": 0.0}


def by_closure() -> Loss:
    last = 0.0

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        nonlocal last
        before, last = last, x.sum().item()
        return (model(x) * before).sum()

    return loss


def by_global() -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before, kept["last"] = kept["last"], x.sum().item()
        return (model(x) * before).sum()

    return loss


def by_holder(
    holds: Callable[[], Any], read: Callable[[Any], Any], write: Callable[[Any, Any], object]
) -> Callable[[], Loss]:
    def make() -> Loss:
        holder = holds()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            before = read(holder)
            write(holder, x.sum().item())
            return (model(x) * before).sum()

        return loss

    return make


class Meter:
    def __init__(self) -> None:
        self.value = 0.0

    def update(self, value: float) -> None:
        self.value = value


def by_default() -> Loss:
    def loss(model: nn.Module, x: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006
        seen.append(x.sum().item())
        return (model(x) * sum(seen)).sum()

    return loss


def by_attribute_of_the_function() -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before = getattr(loss, "last", 0.0)
        loss.last = x.sum().item()  # type: ignore[attr-defined]
        return (model(x) * before).sum()

    return loss


def by_tensor() -> Loss:
    tensors: list[Tensor] = [torch.zeros((), dtype=torch.float64)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before, tensors[0] = tensors[0], x.detach().sum()
        return (model(x) * before).sum() * (1 if x.sum() > 0 else 2)

    return loss


def by_results() -> Loss:
    tensors: Callable[[], list[Tensor]] = cache(list)  # the walk does not look into results

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before = tensors().pop() if tensors() else 0.0
        tensors().append(x.detach().sum())
        return (model(x) * before).sum() * (1 if x.sum() > 0 else 2)

    return loss


def by_queue_of_numbers() -> Queue[float]:
    numbers: Queue[float] = Queue()
    numbers.put(0.0)
    return numbers


def by_list_in_array() -> np.ndarray:
    objects = np.empty(2, dtype=object)
    objects[1] = [0.0]
    return objects


def by_generator() -> Loss:
    def remembered() -> Generator[float, float, None]:
        last = 0.0
        while True:
            last = yield last

    memory = remembered()
    next(memory)
    return lambda model, x: (model(x) * memory.send(x.sum().item())).sum()


def by_write() -> Loss:
    table = torch.zeros((), dtype=torch.float64)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before = table.clone()
        table.copy_(x.detach().sum())
        return (model(x) * before).sum() * (1 if x.sum() > 0 else 2)

    return loss


LEAVES: dict[str, Callable[[], Loss]] = {
    "closure": by_closure,
    "global": by_global,
    "list": by_holder(lambda: [0.0], lambda h: h[0], lambda h, v: h.__setitem__(0, v)),
    "long list": by_holder(lambda: [0.0] * 50_000, lambda h: h[7], lambda h, v: h.__setitem__(7, v)),
    "deque": by_holder(lambda: deque([0.0]), lambda h: h[-1], lambda h, v: h.append(v)),
    "namespace": by_holder(lambda: SimpleNamespace(v=0.0), lambda h: h.v, lambda h, v: setattr(h, "v", v)),
    "object": by_holder(Meter, lambda h: h.value, lambda h, v: h.update(v)),
    "array": by_holder(lambda: np.zeros(1), lambda h: float(h[0]), lambda h, v: h.__setitem__(0, v)),
    "array of Python": by_holder(lambda: array("d", [0.0]), lambda h: h[0], lambda h, v: h.__setitem__(0, v)),
    "bytes": by_holder(
        lambda: bytearray(8), lambda h: struct.unpack_from("d", h)[0], lambda h, v: struct.pack_into("d", h, 0, v)
    ),
    "view of bytes": by_holder(
        lambda: memoryview(bytearray(8)).cast("d"), lambda h: h[0], lambda h, v: h.__setitem__(0, v)
    ),
    "list of collections": by_holder(lambda: UserList([0.0]), lambda h: h[0], lambda h, v: h.__setitem__(0, v)),
    "queue": by_holder(by_queue_of_numbers, lambda h: h.queue[-1], lambda h, v: h.put(v)),
    "array of objects": by_holder(
        lambda: np.array([[0.0]], dtype=object), lambda h: h[0, 0], lambda h, v: h.__setitem__((0, 0), v)
    ),
    "list in an array of objects": by_holder(by_list_in_array, lambda h: h[1][-1], lambda h, v: h[1].append(v)),
    "attribute of a partial function": by_holder(
        lambda: partial(sum), lambda h: getattr(h, "last", 0.0), lambda h, v: setattr(h, "last", v)
    ),
    "generator": by_generator,
    "set": by_holder(lambda: {0.0}, lambda h: max(h), lambda h, v: h.add(v)),
    "default": by_default,
    "attribute of the function": by_attribute_of_the_function,
    "tensor": by_tensor,
    "tensor among the results that a function keeps": by_results,
    "write": by_write,
}


_REFUSED = (
    r"keeps from one call to the next|earlier call|was written to|first batch|all examples share|reaches a generator"
)


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("batches", [1, 2], ids=["within a microbatch", "between microbatches"])
def test_what_an_example_leaves_for_the_next_is_refused(name: str, batches: int) -> None:
    x = rows(2)
    with pytest.raises(PrivacyError, match=_REFUSED):
        summed(net(), LEAVES[name](), *x.split(2 // batches))


def seeds_torch(model: nn.Module, x: Tensor) -> Tensor:
    noise = torch.rand(2, dtype=x.dtype)
    torch.manual_seed(int(x[0, 0] * 1000))
    return (model(x) * noise).sum()


def seeds_others(model: nn.Module, x: Tensor) -> Tensor:
    noise = random.random() + float(np.random.random())
    random.seed(int(x[0, 0] * 1000))
    np.random.seed(int(abs(x[0, 0]) * 1000))
    return model(x).sum() * noise


_OWN = random.Random(1)


def seeds_its_own(model: nn.Module, x: Tensor) -> Tensor:
    noise = _OWN.random()
    _OWN.seed(int(x[0, 0] * 1000))
    return model(x).sum() * noise


def draws_as_often(model: nn.Module, x: Tensor) -> Tensor:
    noise = torch.rand(2, dtype=x.dtype)
    torch.rand(int(x[0, 0].abs() * 1000))
    return (model(x) * noise).sum()


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("loss", [seeds_torch, seeds_others, seeds_its_own, draws_as_often])
def test_random_numbers_of_an_example_do_not_depend_on_another(loss: Loss) -> None:
    x = rows(3)
    x[0, 2] = 100.0  # the first record is not finite, so the sum is that of the others, whatever the first has seeded
    other = x.clone()
    other[0, 0] += 1.0
    found: list[dict[str, Tensor]] = []
    for records in (x, other):
        model = net()
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        _OWN.seed(3)
        found.append(summed(model, lambda m, x: loss(m, x) * (torch.inf if x[0, 2] > 50 else 1.0), records))
        found[-1]["next"] = torch.rand(1)
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


class Caching(nn.Module):
    """Keeps what it has seen: in an attribute, in a buffer, and in a list."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        self.last = 1.0
        self.list: list[float] = []
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x) * self.last * (1 + len(self.list)) + self.seen
        self.last = x.sum().item()
        self.list.append(self.last)
        self.seen.add_(self.last)
        return out


def of_layer(model: nn.Module, x: Tensor) -> Tensor:
    return model.get_submodule("layer")(x).square().sum()


def of_caching(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_a_clip_alone_refuses_a_model_that_changes() -> None:
    with pytest.raises(PrivacyError, match="keeps from one call to the next"):
        summed(Caching(), of_caching, rows(2))


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_a_run_puts_the_model_back_after_each_example() -> None:
    model, x = Caching(), rows(4)
    expected = example_gradients(model, lambda model, x: torch.stack([of_layer(model, row) for row in x]), (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    clip = PerExampleClip(model, 0.5)
    run = noisette.privatize(
        clip, optimizer, x, noise_multiplier=1e-12, sampling_rate=1.0, expected_batch_size=1, steps=1, ledger=Ledger()
    )
    for batch in run.batches():
        for part in batch.microbatches(3):
            run.accumulate(of_caching, part)
        optimizer.step()
    for name, total in expected.clipped(0.5).sums.items():
        gradient = dict(model.named_parameters())[name].grad
        assert gradient is not None
        torch.testing.assert_close(gradient, total, rtol=1e-6, atol=1e-9)
    assert (model.last, model.list, float(model.seen)) == (1.0, [], 0.0)
    run.close()
    clip.close()


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning", "ignore:the loss of 3 public examples")
def test_separability_that_is_asserted_all_the_same_changes_nothing() -> None:
    model, x = net(), rows(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = noisette.privatize(
        PerExampleClip(model, 0.5),
        optimizer,
        x,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        expected_batch_size=4,
        steps=1,
        ledger=Ledger(),
        separability="asserted",
    )
    for batch in run.batches():
        for part in batch.microbatches(3):
            run.accumulate(lambda m, x: m(x).square().sum() * (1 if float(x[0, 0]) > 0 else 2), part)
        optimizer.step()
    assert run.steps_taken == 1
    run.close()
