"""What is published with the weights tells nothing of a record but what releases tell.

No value of a record is in a buffer, parameters move by releases alone, random numbers of torch within a batch are
secret, and the state of its generator afterwards tells nothing of the batch. Two runs are compared on data sets that
differ by one record, with the same batches but for it and the same released values.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset

from model_cases import Forward
from noisette import PrivacyError, PrivateRun, RdpAccountant
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease
from noisette.core.steps import seed_secretly
from noisette.nn import PublicBatchNorm, convert_batch_norm
from oracle import clipped_sum
from small_loop import loss as cross_entropy
from small_loop import start, take_steps

SIZE, FEATURES, CLASSES, STEPS = 9, 4, 3, 4
X = torch.randn(SIZE, FEATURES, generator=torch.Generator().manual_seed(7))
X[-1] = 30.0  # the record that only one of two runs has
Y = torch.arange(SIZE) % CLASSES
one_by_one = pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")


@pytest.fixture(autouse=True)
def _known_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of batches is known, and what is released does not depend on the sums."""

    def release(self: GaussianRelease, sums: Any, names: Mapping[int, str], *, step: int) -> None:
        for part in sums:
            for k, p in enumerate(part.params):
                p.grad = self._written[id(p)] = torch.full_like(p, 0.01 * (1 + k + step))

    monkeypatch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, bytes(range(32))))
    monkeypatch.setattr(GaussianRelease, "__call__", release)


def run_of(model: nn.Module, records: int = SIZE, steps: int = STEPS, data: Any = None) -> PrivateRun:
    clip, accountant = {"max_grad_norm": 1.0, "capture": "eager"}, RdpAccountant()
    declared = {"sampling_rate": 1.0, "expected_batch_size": 8, "steps": steps, "accountant": accountant}
    return start(model, (X[:records], Y[:records]) if data is None else data, clip=clip, **declared)


def train(model, *, records=SIZE, size=4, between=lambda step: None) -> nn.Module:
    with run_of(model, records) as run:
        for step, batch in enumerate(run.batches()):
            for x, y in batch.microbatches(size):
                run.accumulate(cross_entropy, x, y)
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
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(9), b.nan_to_num(9))
        return type(a) is type(b) and bool(a == b)

    return [path for path in sorted({*one, *other}) if not same(one.get(path, ...), other.get(path, ...))]


# Without one record, in other microbatches, and without any record
OTHER_RUNS: list[dict[str, int]] = [{"records": SIZE - 1}, {"size": 2}, {"records": 0}]


def runs(make: Callable[[], nn.Module]) -> list[dict[str, Any]]:
    found = []
    for change in ({}, *OTHER_RUNS):
        torch.manual_seed(3)
        found.append(published(train(make(), **change)))
    return found


class Writes(nn.Module):
    def __init__(self, write: Callable[[Any, Tensor], object] = lambda m, x: None) -> None:
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
    if (x > 20).any():
        module.seen.fill_(1)
        module.mean.add_(1.0)


DROPPED: dict[str, Callable[[Any, Tensor], object]] = {
    "a running mean": lambda m, x: m.mean.mul_(0.9).add_(x[0], alpha=0.1),
    "through a view": lambda m, x: m.mean.detach()[:2].copy_(x[0, :2]),
    "another tensor": lambda m, x: setattr(m, "mean", x.mean(0)),
    "of another shape, not in the state": lambda m, x: setattr(m, "cache", x.clone()),
    "a count": lambda m, x: m.seen.add_(1),
    "a branch on a record": remembers,
}


@one_by_one
@pytest.mark.filterwarnings("ignore:the loss counts in")
@pytest.mark.parametrize("write", DROPPED.values(), ids=DROPPED)
def test_what_a_loss_writes_into_buffers_is_dropped(write: Callable[[Any, Tensor], object]) -> None:
    first, *others = runs(lambda: Writes(write))
    assert first["mean"].eq(0).all()
    for other in others:
        assert differences(first, other) == []


# The loop may write buffers and parameters, but not between the first records of a batch and its release

WRITTEN: dict[str, Callable[[Any, Tensor], object]] = {
    "mean": lambda m, x: m.mean.copy_(x.mean(0)),
    "cache": lambda m, x: setattr(m, "cache", x.mean(0)),
    "late": lambda m, x: m.register_buffer("late", x.mean(0)),
    "frozen": lambda m, x: m.frozen.detach().add_(x.mean(0)),
    "layer.weight": lambda m, x: m.layer.weight.detach().mul_(1 + x.mean()),
    "layer.bias": lambda m, x: m.layer.load_state_dict({n: p + x.mean() for n, p in m.layer.state_dict().items()}),
}


def train_writing(run: PrivateRun, model: nn.Module, name: str) -> None:
    for x, y in next(run.batches()).microbatches(4):
        WRITTEN[name](model, x)
        run.accumulate(cross_entropy, x, y)


@pytest.mark.parametrize("name", ["mean", "cache", "late"])
def test_a_buffer_that_the_loop_writes_within_a_batch_is_put_back(name: str) -> None:
    """Statistics of the batch, written between two microbatches, would be published, and move the next one's sum."""
    model = Writes()
    before = published(copy.deepcopy(model))
    with run_of(model) as run:
        train_writing(run, model, name)
        refusal = rf"{name}.*written between.*Write a buffer before batch.microbatches"
        with pytest.raises(PrivacyError, match=refusal):
            run.optimizer.step()
        assert differences(before, published(model)) == []
        run.optimizer.step()  # of the batch as it was computed, with the buffers from before it
    assert run.steps_taken == 1


@pytest.mark.parametrize("where", ["after the step", "before the first microbatch"])
def test_what_the_loop_writes_between_batches_stays(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy: an annealed coefficient, averages, merged weights."""
    monkeypatch.setattr(GaussianRelease, "__call__", lambda *_, **__: None)
    model = Writes()

    def change(step: int) -> None:
        for name in ("mean", "cache", "frozen", "layer.weight", "layer.bias"):
            WRITTEN[name](model, torch.full((1, FEATURES), 0.01 * (1 + step)))

    with run_of(model) as run:
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
    assert run.steps_taken == STEPS


def test_a_run_that_is_closed_within_a_batch_leaves_nothing() -> None:
    model = Writes()
    before, run = published(copy.deepcopy(model)), run_of(model)
    [x, _] = next(next(run.batches()).microbatches(3))
    for name in ("mean", "cache", "late"):
        WRITTEN[name](model, x)
    assert differences(before, published(model)) != []
    run.close()
    assert differences(before, published(model)) == []


@one_by_one
@pytest.mark.parametrize("trained", [True, False])
def test_embeddings_that_are_renormalised_are_refused(trained: bool) -> None:
    words = nn.Embedding(50, 5, max_norm=0.5).requires_grad_(trained)
    out = nn.Linear(5 * FEATURES, CLASSES)
    model = Forward(lambda m, x: m.out(m.words(x.abs().long() % 50).flatten(1)), words=words, out=out)
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
        for x, y in next(run.batches()).microbatches(4):
            model[1].bias.detach().add_(x.mean())
            run.accumulate(cross_entropy, x, y)
        with pytest.raises(PrivacyError, match=r"1\.bias"):
            run.optimizer.step()


def normed(make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(make(nn.Linear(FEATURES, 6)), nn.Tanh(), make(nn.Linear(6, CLASSES)))


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, nn.utils.spectral_norm], ids=["new", "hook"])
def test_spectral_norm_does_not_tell_the_microbatches_and_moves_once_a_step(norm: Any) -> None:
    first, *others = runs(lambda: normed(norm))
    assert all(differences(first, other) == [] for other in others)
    torch.manual_seed(3)
    start = published(normed(norm))
    vectors = [name for name in start if name.endswith(("_u", "_v"))]
    assert vectors
    assert all(not torch.equal(start[name], first[name]) for name in vectors)


def test_spectral_norm_has_one_weight_for_all_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released sum is that of single examples at the vectors from before the batch."""
    torch.manual_seed(3)
    model = normed(parametrizations.spectral_norm)
    given: list[Any] = []
    run = run_of(model, steps=1)
    monkeypatch.setattr(GaussianRelease, "__call__", lambda self, sums, names, step: given.extend(sums))
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def from_the_start(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for name, buffer in model.named_buffers():
            buffer.data.copy_(start[name])
        return cross_entropy(model, x, y)

    truth = clipped_sum(model, from_the_start, (X, Y), 1.0)
    with run:
        take_steps(run, size=2)
    for name, g in zip(truth.sums, given[0].grads, strict=True):
        torch.testing.assert_close(g.double(), truth.sums[name], rtol=1e-4, atol=1e-5)


def with_buffer(tensor: Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    model[0].register_buffer("table", tensor)
    return model


HARMLESS: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: normed(parametrizations.weight_norm),
    "an expanded buffer": lambda: with_buffer(torch.ones(1).expand(1000)),
    "no numbers in a buffer": lambda: with_buffer(torch.full((3,), torch.nan, dtype=torch.complex128)),
    "no memory": lambda: with_buffer(torch.ones(3, device="meta")),
    "inference": lambda: with_buffer(torch.inference_mode()(torch.ones)(3)),
}


@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS)
def test_harmless_models_are_not_refused(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = {name: p.clone() for name, p in model.named_parameters()}
    train(model, size=2)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters() if p.requires_grad)


DRAWS: dict[str, Callable[[Tensor], object]] = {
    "dropout": lambda x: F.dropout(x),
    "numbers that depend on a record": lambda x: torch.rand(int(2 + x.abs().sum() % 3)),
    "a seed": lambda x: torch.manual_seed(5),
}


def after_each_step(draw: Callable[[Tensor], object], **change: int) -> list[dict[str, Any]]:
    torch.manual_seed(5)
    model, found = Writes(lambda m, x: draw(x)), list[dict[str, Any]]()
    train(model, between=lambda step: found.append({"torch": torch.get_rng_state()} | published(model)), **change)
    return found


@one_by_one
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_generator_does_not_tell_the_batch(draw: Callable[[Tensor], object]) -> None:
    """The state after each step follows from the seed of the program alone."""
    first = after_each_step(draw)
    assert len(first) == STEPS
    for change in ({}, *OTHER_RUNS):
        for one, two in zip(first, after_each_step(draw, **change), strict=True):
            assert differences(one, two) == []


def seeds_of_a_run(between: Callable[[], object] = lambda: None, data: Any = None, **loading: Any) -> list[int]:
    """The seed of torch's generator in each call of the loss, in a program that is seeded as every other one is."""
    drawn: list[int] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn.append(torch.initial_seed())
        return cross_entropy(model, x, y)

    torch.manual_seed(5)
    with run_of(nn.Linear(FEATURES, CLASSES), data=data) as run:
        for batch in run.batches(**loading):
            for x, y in batch.microbatches(3):
                between()
                run.accumulate(loss, x, y)
            run.optimizer.step()
    assert len(drawn) == STEPS * 3
    return drawn


def test_who_knows_the_seed_of_a_program_does_not_know_the_masks() -> None:
    """If others could compute masks and views, one record more would move those of all records behind it."""
    assert not set(seeds_of_a_run()) & set(seeds_of_a_run())


def test_masks_of_a_batch_go_on_behind_those_of_the_batch_before() -> None:
    states: list[bytes] = []

    def drop_out(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, nn.functional.dropout(x), y)

    with run_of(nn.Linear(FEATURES, CLASSES)) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(4):
                states.append(torch.get_rng_state().numpy().tobytes())
                run.accumulate(drop_out, x, y)
            run.optimizer.step()
    assert len(set(states)) == len(states) > STEPS


def test_a_loop_that_seeds_each_microbatch_has_secret_masks_all_the_same() -> None:
    assert 5 not in seeds_of_a_run(lambda: torch.manual_seed(5))


class Seeding(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(index)
        return X[index] + torch.rand(()), Y[index]


def test_a_data_set_that_seeds_torch_leaves_secret_masks() -> None:
    assert not set(seeds_of_a_run(data=Seeding(), ahead=0)) & set(range(SIZE))


def test_the_release_of_another_run_within_a_batch_leaves_secret_seeds() -> None:
    """It gives the generators their state from before its own batch, which may have been a public one."""
    used: list[int] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        used.append(torch.initial_seed())
        return cross_entropy(model, x, y)

    with run_of(nn.Linear(FEATURES, CLASSES)) as one, run_of(nn.Linear(FEATURES, CLASSES)) as other:
        for batch, second in zip(one.batches(), other.batches(), strict=True):
            for x, y in batch.microbatches(4):
                one.accumulate(loss, x, y)
            for k, (x, y) in enumerate(second.microbatches(4)):
                if k == 1:
                    one.optimizer.step()
                restored, before = torch.initial_seed(), used[-1]
                other.accumulate(loss, x, y)
                assert k != 1 or restored not in (before, used[-1])
            other.optimizer.step()
    assert len(set(used)) == 2 * STEPS + 1  # the first of each batch of the second run goes on from the batch before


def test_secret_seeds_are_too_many_to_be_tried() -> None:
    """Of a seed of 256 bits torch itself would use 32; here states differ wherever the seeds do."""
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbits", lambda bits: asked.append(bits) or 2 ** (bits - 1) + 5)
        seed_secretly()
        one = torch.get_rng_state()
        patch.setattr("secrets.randbits", lambda bits: 2 ** (bits - 1) + 2 ** (bits - 9) + 5)
        seed_secretly()
    assert asked == [256]
    assert not torch.equal(one, torch.get_rng_state())
