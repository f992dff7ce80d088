"""Private state that is published with the weights: written anywhere, at any time, it is put back or refused."""

from __future__ import annotations

import copy
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import noisette
from noisette import PrivacyError
from noisette._internal import content_mark
from noisette.nn import PublicBatchNorm, convert_batch_norm
from noisette.run import seal
from noisette.run.model_snapshot import ModelSnapshot
from oracle import clipped_sum
from published_runs import (
    CLASSES,
    FEATURES,
    SIZE,
    X,
    Y,
    differences,
    known_release,
    published,
    train,
    train_until_refused,
)


@pytest.fixture(autouse=True)
def _known_release(monkeypatch: pytest.MonkeyPatch):
    with known_release(monkeypatch):
        yield


class Writes(nn.Module):
    """A linear layer that calls ``write(self, x)`` in each forward pass."""

    def __init__(self, write: Callable[[Any, Tensor], object], *, at: int = 1) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(FEATURES, CLASSES), nn.Parameter(torch.zeros(FEATURES), requires_grad=False)
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("cache", torch.zeros(FEATURES), persistent=False)
        self.register_buffer("seen", torch.tensor(0))
        self.tensor, self.array = torch.zeros(FEATURES), np.zeros(FEATURES)
        self.calls, self.ids, self.log, self.table = 0, set(), [], {"sum": torch.zeros(())}
        self.recent, self.space, self.nothing = deque(maxlen=3), SimpleNamespace(n=0, t=torch.zeros(2)), None
        self.meter, self.pair = Meter(), (torch.zeros(2), [])
        self.user_dict, self.user_list, self.chain = UserDict(), UserList(), ChainMap({}, {})
        self.numbers, self.objects = array("d", [0.0]), np.array([None, []], dtype=object)
        self.write, self.at = staticmethod(write).__func__, at

    def forward(self, x: Tensor) -> Tensor:
        COUNT[0] += 1
        if COUNT[0] % self.at == 0:
            with torch.no_grad():
                self.write(self, x)
        return self.layer(x)


COUNT = [0]


class Meter:
    def __init__(self) -> None:
        self.total, self.last = 0.0, torch.zeros(3)


class WritesInBackward(Writes):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.register_hook(lambda g: None if self.mean.data.add_(x.sum(0)) is not None else g)
        return Passed.apply(y, self, x)


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, module: Writes, x: Tensor) -> Tensor:
        ctx.module, ctx.x = module, x
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.module.tensor.add_(ctx.x.sum(0))
        ctx.module.calls += len(ctx.x)
        return grads[0], None, None


def through_numpy(module: Writes, x: Tensor) -> None:
    module.mean.numpy()[:] = x.sum(0).numpy()


def flag(module: Writes, x: Tensor) -> None:
    if (x > 20).any():
        module.seen.fill_(1)
        module.ids.add(42)


def replace_the_layer(module: Writes, x: Tensor) -> None:
    module._modules["added"] = nn.Identity()
    module.mean = x.mean(0)
    module.tensor = x.sum(0)
    module.tensor.note = "new"


PUT_BACK = {
    "a buffer": lambda m, x: m.mean.add_(x.sum(0)),
    "a buffer through data": lambda m, x: m.mean.data.add_(x.sum(0)),
    "a buffer through a view": lambda m, x: m.mean.detach()[:2].copy_(x[0, :2]),
    "a buffer through NumPy": through_numpy,
    "a buffer of another size": lambda m, x: m._buffers.update(mean=x.clone()),
    "other data in a buffer": lambda m, x: setattr(m.mean, "data", x.double()),
    "a buffer not in the state": lambda m, x: m.cache.add_(x.sum(0)),
    "a new buffer": lambda m, x: m.register_buffer("late", x.clone()),
    "a buffer is deleted": lambda m, x: m._buffers.pop("cache", None) if (x > 20).any() else None,
    "a flag of a record": flag,
    "a counter": lambda m, x: setattr(m, "calls", m.calls + 1),
    "a counting buffer": lambda m, x: m.seen.add_(1),
    "an attribute": lambda m, x: m.tensor.copy_(x.sum(0)),
    "a new attribute": lambda m, x: setattr(m, "last", x),
    "an attribute that was none": lambda m, x: setattr(m, "nothing", x),
    "an attribute of a tensor": lambda m, x: setattr(m.frozen, "note", x.sum()),
    "an attribute of the weight": lambda m, x: setattr(m.layer.weight, "note", float(x.sum())),
    "an array": lambda m, x: np.copyto(m.array, x.sum(0).numpy()),
    "a set": lambda m, x: m.ids.update(x[:, 0].tolist()),
    "a list": lambda m, x: m.log.append(x),
    "a dictionary": lambda m, x: m.table["sum"].add_(x.sum()),
    "a new key": lambda m, x: m.table.update(new=x),
    "a deque": lambda m, x: m.recent.append(float(x.sum())),
    "a namespace": lambda m, x: (setattr(m.space, "n", m.space.n + 1), m.space.t.add_(x.sum())),
    "an object": lambda m, x: (setattr(m.meter, "total", m.meter.total + float(x.sum())), m.meter.last.add_(x.sum())),
    "a dictionary of collections": lambda m, x: m.user_dict.update({len(m.user_dict): x}),
    "a list of collections": lambda m, x: m.user_list.append(x),
    "a chain of dictionaries": lambda m, x: m.chain.update({len(m.chain): x}),
    "an array of Python's": lambda m, x: m.numbers.append(float(x.sum())),
    "an entry of an array of Python's": lambda m, x: m.numbers.__setitem__(0, float(x.sum())),
    "an array of objects": lambda m, x: (m.objects.__setitem__(0, x), m.objects[1].append(x)),
    "in a tuple": lambda m, x: (m.pair[0].add_(x.sum()), m.pair[1].append(1)),
    "a setting of a layer": lambda m, x: setattr(m.layer, "bits", len(x)),
    "modes": lambda m, x: m.layer.train(bool((x < 20).all())),
    "a module": replace_the_layer,
}


def runs(make: Callable[[], nn.Module], **settings: Any) -> list[tuple[bool, dict[str, Any]]]:
    """Whether a run was refused, and what is published, with and without one record, and in other microbatches."""
    found = []
    for change in ({}, {"records": SIZE - 1}, {"size": 2}, {"records": 0}):
        torch.manual_seed(3)
        COUNT[0] = 0
        model = make()
        refused = train_until_refused(model, **settings, **change)
        found.append((refused, published(model)))
    return found


@pytest.mark.parametrize("at", [1, 7], ids=["each call", "each seventh call"])
@pytest.mark.parametrize("write", PUT_BACK.values(), ids=PUT_BACK)
def test_what_a_forward_pass_writes_is_put_back(write: Callable[[Any, Tensor], object], at: int) -> None:
    (refused, first), *others = runs(lambda: Writes(write, at=at))
    assert not refused
    for refused, other in others:
        assert not refused
        assert differences(first, other) == []


def test_a_queue_is_put_back() -> None:
    """A model that holds one cannot be pickled."""
    model = nn.Linear(1, 1)
    queue = model.queue = Queue()
    queue.put("before")
    before = ModelSnapshot(model)
    queue.put(X)
    before.put_back()
    assert list(queue.queue) == ["before"]


def test_what_a_backward_pass_writes_is_put_back() -> None:
    (_, first), *others = runs(lambda: WritesInBackward(lambda m, x: None))
    assert all(not refused and differences(first, other) == [] for refused, other in others)


REFUSED = {
    "frozen": (lambda m, x: m.frozen.add_(x.sum(0)), "frozen"),
    "frozen, through data": (lambda m, x: m.frozen.data.add_(x.sum(0)), "frozen"),
    "frozen, through NumPy": (lambda m, x: np.add(m.frozen.numpy(), 1, out=m.frozen.numpy()), "frozen"),
    "frozen, other data": (lambda m, x: setattr(m.frozen, "data", x.clone()), "frozen"),
    "trained": (lambda m, x: m.layer.weight.data.mul_(1 + x.mean()), "layer.weight"),
    "trained, the last bit of one": (
        lambda m, x: m.layer.weight.data.view(torch.int32)[0, 0].bitwise_xor_(1),
        "layer.weight",
    ),
    "trained, two change places": (
        lambda m, x: m.layer.weight.data.copy_(m.layer.weight.data.flip(0)),
        "layer.weight",
    ),
    "another parameter": (lambda m, x: setattr(m, "frozen", nn.Parameter(x.sum(0), requires_grad=False)), "frozen"),
    "a new parameter": (lambda m, x: setattr(m, "late", nn.Parameter(x.sum(0), requires_grad=False)), "late"),
    "another layer": (lambda m, x: setattr(m, "extra", nn.Linear(2, 2)), "extra"),
}


@pytest.mark.parametrize(("write", "name"), REFUSED.values(), ids=REFUSED)
def test_parameters_that_are_written_are_refused_and_put_back(write: Any, name: str) -> None:
    torch.manual_seed(3)
    model = Writes(write)
    before = published(copy.deepcopy(model))
    with pytest.raises(PrivacyError, match=name) as refused:
        train(model)
    assert "persistent" not in str(refused.value)
    assert differences(before, published(model)) == []


def test_weights_that_were_written_are_never_released() -> None:
    model = Writes(REFUSED["trained"][0])
    clip, optimizer = seal_run(model)
    with pytest.raises(PrivacyError):  # the preflight sees it first where it writes what the outputs depend on
        optimizer_steps(clip, optimizer)
    with pytest.raises(PrivacyError):
        optimizer.step()
    assert model.layer.weight.grad is None
    clip.close()


def seal_run(model: nn.Module) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    run = noisette.privatize(
        noisette.PerExampleClip(model, 1.0),
        optimizer,
        (X, Y),
        sampling_rate=1.0,
        expected_batch_size=8,
        steps=3,
        noise_multiplier=1.0,
        accountant=noisette.RdpAccountant(),
        separability="asserted",
    )
    return run, optimizer


def optimizer_steps(run: Any, optimizer: Any) -> None:
    for batch in run.batches():
        for x, y in batch.microbatches(3):
            run.backward(F.cross_entropy(run.bound.model(x), y, reduction="none"))
        optimizer.step()


def test_a_run_that_is_closed_within_a_batch_leaves_nothing() -> None:
    model = Writes(lambda m, x: (m.mean.add_(x.sum(0)), m.ids.add(1), m.frozen.data.add_(x.sum(0))))
    before = published(copy.deepcopy(model))
    run, _ = seal_run(model)
    run._hooks.pop().remove()
    [x, _] = next(next(run.batches()).microbatches(3))
    model(x)
    assert differences(before, published(model)) != []
    run.close()
    assert differences(before, published(model)) == []


class Renormalised(nn.Module):
    """Looking a word up writes to the weight."""

    def __init__(self, *, trained: bool, functional: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 5, max_norm=None if functional else 0.5)
        self.words.weight.requires_grad_(trained)
        self.functional, self.out = functional, nn.Linear(5 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        numbers = x.abs().long() % 50
        found = F.embedding(numbers, self.words.weight, max_norm=0.5) if self.functional else self.words(numbers)
        return self.out(found.flatten(1))


@pytest.mark.parametrize("functional", [True, False])
def test_embeddings_that_are_renormalised_are_refused(functional: bool) -> None:
    model = Renormalised(trained=False, functional=functional)
    before = published(copy.deepcopy(model))
    with pytest.raises(PrivacyError, match=r"words.weight.*max_norm=None"):
        train(model)
    assert differences(before, published(model)) == []


class Large(nn.Module):
    """A frozen table that is too large for a copy."""

    def __init__(self, write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(300, 41), requires_grad=False)
        self.layer, self.write = nn.Linear(FEATURES, CLASSES), write

    def forward(self, x: Tensor) -> Tensor:
        self.write(self.table.data, x)
        return self.layer(x)


LARGE = {
    "one bit": lambda t, x: t.view(torch.int32)[5, 5].bitwise_xor_(1),
    "the last element": lambda t, x: t[-1, -1].add_(x.sum()),
    "two signs": lambda t, x: (t[0, 1].neg_(), t[0, 3].neg_()),
    "four signs": lambda t, x: (t[:2, 1].neg_(), t[:2, 3].neg_()),
    "rows change places": lambda t, x: t.copy_(t.flip(0)),
    "neighbours change places": lambda t, x: t.copy_(t.roll(1, 1)),
}


@pytest.mark.parametrize("write", LARGE.values(), ids=LARGE)
def test_what_is_too_large_for_a_copy_is_erased(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_KEPT_BYTES", 1000)
    monkeypatch.setattr(content_mark, "_COLUMNS", 64)
    content_mark._keys.cache_clear()
    model = Large(write)
    with pytest.raises(PrivacyError, match="table"):
        train(model)
    assert model.table.isnan().all()
    content_mark._keys.cache_clear()
    kept = Large(lambda t, x: None)
    table = kept.table.clone()
    train(kept)
    assert torch.equal(kept.table, table)
    content_mark._keys.cache_clear()


class Extra(nn.Module):
    """A state that no attribute holds, in the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.set_extra_state({"n": torch.zeros(()), "names": []})

    def get_extra_state(self) -> Any:
        return dict(EXTRA)

    def set_extra_state(self, state: Any) -> None:
        EXTRA.clear()
        EXTRA.update(copy.deepcopy(state))

    def forward(self, x: Tensor) -> Tensor:
        EXTRA["n"] = EXTRA["n"] + x.detach().sum()
        EXTRA["names"].append(len(x))
        return self.layer(x)


EXTRA: dict[str, Any] = {}


def test_extra_state_is_put_back() -> None:
    (_, first), *others = runs(Extra)
    assert all(not refused and differences(first, other) == [] for refused, other in others)
    assert EXTRA["names"] == []


class ReadOnlyExtra(Extra):
    def set_extra_state(self, state: Any) -> None:
        EXTRA.setdefault("n", torch.zeros(()))
        EXTRA.setdefault("names", [])


def test_extra_state_that_cannot_be_put_back_is_refused() -> None:
    with pytest.raises(PrivacyError, match="the extra state of ReadOnlyExtra"):
        train(ReadOnlyExtra())


# Harmless models train as before


def spectral(make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(make(nn.Linear(FEATURES, 6)), nn.Tanh(), make(nn.Linear(6, CLASSES)))


SPECTRAL = {
    "parametrization": lambda: spectral(parametrizations.spectral_norm),
    "hook": lambda: spectral(nn.utils.spectral_norm),
}


@pytest.mark.parametrize("make", SPECTRAL.values(), ids=SPECTRAL)
def test_spectral_norm_does_not_tell_the_microbatches_and_moves_once_a_step(make: Callable[[], nn.Module]) -> None:
    (refused, first), *others = runs(make)
    assert not refused
    assert all(not refused and differences(first, other) == [] for refused, other in others)
    torch.manual_seed(3)
    start = published(make())
    vectors = [name for name in start if name.endswith(("_u", "_v"))]
    assert vectors
    assert all(not torch.equal(start[name], first[name]) for name in vectors)


def test_spectral_norm_has_one_weight_for_all_microbatches() -> None:
    """The released sum is that of single examples at the vectors from before the batch."""
    model = SPECTRAL["parametrization"]()
    run, optimizer = seal_run(model)
    given: list[Any] = []
    run._release = lambda sums, names, step: given.extend(sums)
    with run:
        batch = next(run.batches())
        start = {name: buffer.clone() for name, buffer in model.named_buffers()}

        def from_the_start(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            for name, buffer in model.named_buffers():
                buffer.data.copy_(start[name])
            return every(model, x, y)

        truth = clipped_sum(copy.deepcopy(model), from_the_start, (X, Y), 1.0)
        for x, y in batch.microbatches(2):
            run.backward(every(model, x, y))
        optimizer.step()
    for name, g in zip(truth.sums, given[0].grads, strict=True):
        torch.testing.assert_close(g.double(), truth.sums[name], rtol=1e-4, atol=1e-5)


def every(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


class Rotary(nn.Module):
    """Keeps what it computes from constants, larger when it must, and the last attention for a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(1, 4), nn.Linear(4, CLASSES)
        self.cos, self.longest, self.last_attention = None, 0, None
        self.register_buffer("mask", torch.ones(1, 1, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n > self.longest:
            self.longest = n
            self.cos = torch.arange(n, dtype=x.dtype).cos().unsqueeze(1)
            self.register_buffer("sin", torch.arange(n, dtype=x.dtype).sin().unsqueeze(1), persistent=False)
        if len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        q = self.query(x.unsqueeze(2)) * self.cos + self.sin
        scores = (q @ q.transpose(1, 2)).masked_fill(~self.mask[:n, :n], -1e9).softmax(2)
        self.last_attention = scores
        return self.out((scores @ q).mean(1))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(lambda v: self.first(v).tanh(), x, use_reentrant=False))


class OutputLikeHuggingFace(nn.Module):
    """Settings in an object, keyword arguments and a record of the last output."""

    class Config:
        def __init__(self) -> None:
            self.hidden, self.names = 6, {0: "a"}

    def __init__(self) -> None:
        super().__init__()
        self.config = self.Config()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, self.config.hidden), nn.Linear(self.config.hidden, CLASSES)])
        self.layers[1].config = self.config
        self.hidden_states: tuple[Tensor, ...] = ()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        for layer in self.layers:
            inputs = layer(inputs)
            self.hidden_states = (*self.hidden_states, inputs)
        return inputs


HARMLESS = {
    "caches": Rotary,
    "gradient checkpointing": Checkpointed,
    "like Hugging Face": OutputLikeHuggingFace,
    "weight norm": lambda: spectral(parametrizations.weight_norm),
    "weight norm by hooks": lambda: spectral(nn.utils.weight_norm),
    "orthogonal": lambda: spectral(parametrizations.orthogonal),
    "batch norm in evaluation mode": lambda: nn.Sequential(
        nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
    ).eval(),
    "an expanded buffer": lambda: with_buffer(torch.ones(1).expand(1000)),
    "no numbers in a buffer": lambda: with_buffer(torch.full((3,), torch.nan)),
    "complex": lambda: with_buffer(torch.ones((), dtype=torch.complex128)),
    "half": lambda: with_buffer(torch.ones(3, dtype=torch.bfloat16)),
    "empty": lambda: with_buffer(torch.ones(0)),
    "sparse": lambda: with_buffer(torch.eye(3).to_sparse()),
    "no memory": lambda: with_buffer(torch.ones(3, device="meta")),
    "inference": lambda: with_buffer(torch.inference_mode()(torch.ones)(3)),
}


def with_buffer(tensor: Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].register_buffer("table", tensor)
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS)
def test_harmless_models_are_not_refused(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = {name: p.clone() for name, p in model.named_parameters()}
    train(model, size=2, checked="table" not in str(model.state_dict().keys()))
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters() if p.requires_grad)


def test_cached_parametrizations_are_not_refused() -> None:
    model = spectral(parametrizations.orthogonal)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with parametrize.cached():
            return every(model, x, y)

    train(model, loss=loss)


@pytest.mark.filterwarnings("ignore:the preflight found no public inputs")  # a bias in front of a norm
def test_public_norms_are_refreshed() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    public = torch.randn(12, FEATURES)
    model = convert_batch_norm(model, to=PublicBatchNorm, public=public)
    train(model, size=2, checked=True)
    hidden = model[0](public)
    model.eval()
    model(public)
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))


def test_weights_of_public_norms_are_sealed_too() -> None:
    class Shifts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
            self.layers = convert_batch_norm(layers, to=PublicBatchNorm, public=torch.randn(12, FEATURES))

        def forward(self, x: Tensor) -> Tensor:
            self.layers[1].bias.data += x.mean()
            return self.layers(x)

    with pytest.raises(PrivacyError, match=r"layers\.1\.bias"):
        train(Shifts())


def averages(model: nn.Module, step: int) -> None:
    model.load_state_dict({name: 0.9 * value for name, value in model.state_dict().items()})


def merged(model: nn.Module, step: int) -> None:
    model[0].weight.data += torch.outer(torch.ones(6), torch.ones(FEATURES))


def replaced(model: nn.Module, step: int) -> None:
    model[0].weight.data = model[0].weight.data.clone() * 2


def frozen_bias(model: nn.Module, step: int) -> None:
    model.register_buffer("step", torch.tensor(step))
    model[2].calls = step
    model.train(step % 2 == 0)


BETWEEN = {"load_state_dict": averages, "merge": merged, "other data": replaced, "settings": frozen_bias}


@pytest.mark.parametrize("where", ["after the step", "before the first microbatch"])
@pytest.mark.parametrize("change", BETWEEN.values(), ids=BETWEEN)
def test_changes_between_batches_stay(change: Callable[[nn.Module, int], None], where: str) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    run, optimizer = seal_run(model)
    with run:
        for step, batch in enumerate(run.batches()):
            if where.startswith("before"):
                change(model, step)
            changed = published(model)
            for x, y in batch.microbatches(4):
                run.backward(every(model, x, y))
            run._release = lambda sums, names, step: None
            optimizer.step()
            assert differences(changed, published(model)) == []
            if where.startswith("after"):
                change(model, step)
