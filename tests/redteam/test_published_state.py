"""What is published with the weights: no value of a record is in a buffer, and parameters move by releases alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import noisette
from noisette import PrivacyError
from noisette.core.release import GaussianRelease
from noisette.nn import PublicBatchNorm, convert_batch_norm
from oracle import clipped_sum
from published_runs import (
    CLASSES,
    FEATURES,
    SIZE,
    X,
    Y,
    cross_entropy,
    differences,
    known_release,
    published,
    run_of,
    train,
)


@pytest.fixture(autouse=True)
def _known_release(monkeypatch: pytest.MonkeyPatch):
    with known_release(monkeypatch):
        yield


class Writes(nn.Module):
    """A linear layer that calls ``write(self, x)`` in each forward pass."""

    def __init__(self, write: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(FEATURES, CLASSES), nn.Parameter(torch.ones(FEATURES), requires_grad=False)
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("cache", torch.zeros(FEATURES), persistent=False)
        self.register_buffer("seen", torch.tensor(0))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self, x)
        return self.layer(x * self.frozen + self.mean)


def remembers(module: Writes, x: Tensor) -> None:
    """A record leaves a mark, by a branch on its values."""
    if (x > 20).any():
        module.seen.fill_(1)
        module.mean.add_(1.0)


DROPPED: dict[str, Callable[[Any, Tensor], object]] = {
    "a running mean": lambda m, x: m.mean.mul_(0.9).add_(x[0], alpha=0.1),
    "through data": lambda m, x: m.mean.data.add_(x.sum(0)),
    "through a view": lambda m, x: m.mean.detach()[:2].copy_(x[0, :2]),
    "another tensor": lambda m, x: setattr(m, "mean", x.mean(0)),
    "of another shape": lambda m, x: setattr(m, "cache", x.clone()),
    "not in the state": lambda m, x: m.cache.add_(x.sum(0)),
    "a count": lambda m, x: m.seen.add_(1),
    "a branch on a record": remembers,
}


def runs(make: Callable[[], nn.Module], **settings: Any) -> list[dict[str, Any]]:
    """What is published with and without one record, in other microbatches, and without any record."""
    found = []
    for change in ({}, {"records": SIZE - 1}, {"size": 2}, {"records": 0}):
        torch.manual_seed(3)
        found.append(published(train(make(), **settings, **change)))
    return found


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("write", DROPPED.values(), ids=DROPPED)
def test_what_a_loss_writes_into_buffers_is_dropped(write: Callable[[Any, Tensor], object]) -> None:
    first, *others = runs(lambda: Writes(write))
    assert first["mean"].eq(0).all()
    for other in others:
        assert differences(first, other) == []


@pytest.mark.parametrize("write", [DROPPED["a running mean"], DROPPED["a branch on a record"]])
@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_a_buffer_carries_nothing_to_another_example(write: Callable[[Any, Tensor], object]) -> None:
    """The sum is that of single examples, each with the buffers from before the batch."""
    torch.manual_seed(3)
    model, start = Writes(write), torch.zeros(FEATURES)

    def from_the_start(model: Any, x: Tensor, y: Tensor) -> Tensor:
        model.mean = start.to(x.dtype)
        return cross_entropy(model, x, y)

    truth = clipped_sum(copy.deepcopy(model), from_the_start, (X, Y), 1.0)
    clip = noisette.PerExampleClip(model, 1.0)
    for rows in (slice(0, 5), slice(5, SIZE)):
        clip.accumulate(cross_entropy, X[rows], Y[rows])
    [found] = clip.pop_sums()
    torch.testing.assert_close(
        torch.cat([g.double().flatten() for g in found.grads]), truth.vector, rtol=1e-4, atol=1e-5
    )


# The loop may write buffers and parameters, but not between the first records of a batch and its release


WRITTEN: dict[str, Callable[[Any, Tensor], object]] = {
    "mean": lambda m, x: m.mean.copy_(x.mean(0)),
    "cache": lambda m, x: setattr(m, "cache", x.mean(0)),
    "late": lambda m, x: m.register_buffer("late", x.mean(0)),
    "frozen": lambda m, x: m.frozen.detach().add_(x.mean(0)),
    "layer.weight": lambda m, x: m.layer.weight.detach().mul_(1 + x.mean()),
    "layer.bias": lambda m, x: m.layer.load_state_dict({n: p + x.mean() for n, p in m.layer.state_dict().items()}),
}


@pytest.mark.parametrize("name", ["mean", "cache", "late"])
def test_a_buffer_that_the_loop_writes_within_a_batch_is_put_back(name: str) -> None:
    """Statistics of the batch, written between two microbatches, would be published, and move the next one's sum."""
    model = Writes(lambda m, x: None)
    before = published(copy.deepcopy(model))
    with run_of(model) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(4):
                WRITTEN[name](model, x)
                run.accumulate(cross_entropy, x, y)
            with pytest.raises(
                PrivacyError, match=rf"{name}.*written between.*Write a buffer before batch.microbatches"
            ):
                run.optimizer.step()
            assert [d for d in differences(before, published(model)) if "layer" not in d] == []
            run.optimizer.step()  # of the batch as it was computed, with the buffers from before it
    assert run.steps_taken == 4


@pytest.mark.parametrize("name", ["layer.weight", "layer.bias"])
def test_a_parameter_that_is_written_within_a_batch_ends_the_run(name: str) -> None:
    model = Writes(lambda m, x: None)
    with run_of(model) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(4):
                WRITTEN[name](model, x)
                run.accumulate(cross_entropy, x, y)
            for _ in range(2):
                with pytest.raises(PrivacyError, match=rf"{name}.*written between.*cannot go on"):
                    run.optimizer.step()
            break
    assert run.steps_taken == 0
    assert model.layer.weight.grad is None


@pytest.mark.parametrize("where", ["after the step", "before the first microbatch"])
def test_what_the_loop_writes_between_batches_stays(where: str) -> None:
    """The remedy: an annealed coefficient, averages, merged weights."""
    model = Writes(lambda m, x: None)

    def change(step: int) -> None:
        for name in ("mean", "cache", "frozen", "layer.weight", "layer.bias"):
            WRITTEN[name](model, torch.full((1, FEATURES), 0.01 * (1 + step)))

    with run_of(model) as run:
        run._release.__class__ = type("NoRelease", (GaussianRelease,), {"__call__": lambda *_, **__: None})
        for step, batch in enumerate(run.batches()):
            if where.startswith("before"):
                change(step)
            changed = published(model)
            for x, y in batch.microbatches(4):
                run.accumulate(cross_entropy, x, y)
            run.optimizer.step()
            assert differences(changed, published(model)) == []
            if where.startswith("after"):
                change(step)
    assert run.steps_taken == 4


def test_a_run_that_is_closed_within_a_batch_leaves_nothing() -> None:
    model = Writes(lambda m, x: None)
    before = published(copy.deepcopy(model))
    run = run_of(model)
    [x, _] = next(next(run.batches()).microbatches(3))
    for name in ("mean", "cache", "late"):
        WRITTEN[name](model, x)
    assert differences(before, published(model)) != []
    run.close()
    assert differences(before, published(model)) == []


class Renormalised(nn.Module):
    """Looking a word up writes to the weight."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 5, max_norm=0.5)
        self.words.weight.requires_grad_(trained)
        self.out = nn.Linear(5 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x.abs().long() % 50).flatten(1))


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_embeddings_that_are_renormalised_are_refused(trained: bool) -> None:
    model = Renormalised(trained=trained)
    before = published(copy.deepcopy(model))
    with pytest.raises(PrivacyError, match=r"max_norm rescales.*leave max_norm out"):
        train(model)
    assert differences(before, published(model)) == []


def test_public_statistics_follow_the_weights_and_their_own_weights_are_watched() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    public = torch.randn(12, FEATURES)
    model = convert_batch_norm(model, to=PublicBatchNorm, public=public)
    train(model, size=2)
    hidden = model[0](public)
    model.eval()
    model(public)
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))
    model.train()
    with run_of(model) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(4):
                model[1].bias.detach().add_(x.mean())
                run.accumulate(cross_entropy, x, y)
            with pytest.raises(PrivacyError, match=r"1\.bias"):
                run.optimizer.step()
            break


# Harmless models train as before


def spectral(make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(make(nn.Linear(FEATURES, 6)), nn.Tanh(), make(nn.Linear(6, CLASSES)))


SPECTRAL = {
    "parametrization": lambda: spectral(parametrizations.spectral_norm),
    "hook": lambda: spectral(nn.utils.spectral_norm),
}


@pytest.mark.parametrize("make", SPECTRAL.values(), ids=SPECTRAL)
def test_spectral_norm_does_not_tell_the_microbatches_and_moves_once_a_step(make: Callable[[], nn.Module]) -> None:
    first, *others = runs(make)
    assert all(differences(first, other) == [] for other in others)
    torch.manual_seed(3)
    start = published(make())
    vectors = [name for name in start if name.endswith(("_u", "_v"))]
    assert vectors
    assert all(not torch.equal(start[name], first[name]) for name in vectors)


def test_spectral_norm_has_one_weight_for_all_microbatches() -> None:
    """The released sum is that of single examples at the vectors from before the batch."""
    torch.manual_seed(3)
    model = SPECTRAL["parametrization"]()
    run = run_of(model, steps=1)
    given: list[Any] = []
    run._release.__class__ = type(
        "Keeps", (GaussianRelease,), {"__call__": lambda self, sums, names, step: given.extend(sums)}
    )
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def from_the_start(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for name, buffer in model.named_buffers():
            buffer.data.copy_(start[name])
        return cross_entropy(model, x, y)

    truth = clipped_sum(copy.deepcopy(model), from_the_start, (X, Y), 1.0)
    with run:
        for batch in run.batches():
            for x, y in batch.microbatches(2):
                run.accumulate(cross_entropy, x, y)
            run.optimizer.step()
    for name, g in zip(truth.sums, given[0].grads, strict=True):
        torch.testing.assert_close(g.double(), truth.sums[name], rtol=1e-4, atol=1e-5)


def with_buffer(tensor: Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].register_buffer("table", tensor)
    return model


HARMLESS = {
    "weight norm": lambda: spectral(parametrizations.weight_norm),
    "orthogonal": lambda: spectral(parametrizations.orthogonal),
    "batch norm in evaluation mode": lambda: nn.Sequential(
        nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
    ).eval(),
    "an expanded buffer": lambda: with_buffer(torch.ones(1).expand(1000)),
    "no numbers in a buffer": lambda: with_buffer(torch.full((3,), torch.nan)),
    "complex": lambda: with_buffer(torch.ones((), dtype=torch.complex128)),
    "half": lambda: with_buffer(torch.ones(3, dtype=torch.bfloat16)),
    "empty": lambda: with_buffer(torch.ones(0)),
    "no memory": lambda: with_buffer(torch.ones(3, device="meta")),
    "inference": lambda: with_buffer(torch.inference_mode()(torch.ones)(3)),
}


@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS)
def test_harmless_models_are_not_refused(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = {name: p.clone() for name, p in model.named_parameters()}
    train(model, size=2)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters() if p.requires_grad)


def test_cached_parametrizations_are_not_refused() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with parametrize.cached():
            return F.cross_entropy(model(x), y)

    train(spectral(parametrizations.orthogonal), loss=loss)
