"""Noisy weights are compared with copies of the model that have them as plain weights, and with cells by hand."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

import noisette.nn
from engine_check import measured
from lstm_by_hand import lstm_by_hand
from model_cases import Forward, cnn, cross_entropy, mlp, squares
from noisette import PerExampleClip, PrivacyError, privatize
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP, Vmap
from noisette.nn import WeightNoise, convert_batch_norm
from noisette.run.private import held_noise
from oracle import clipped_sum
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm

ENGINES = [BookKeeping(), ReweightGP(), PerExampleLoop()]
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)


def with_noise_as_weights(plain: nn.Module, noisy: nn.Module) -> nn.Module:
    """A copy of the plain model with the noisy weights of the noisy model's last call."""
    fixed, noise = copy.deepcopy(plain), dict(noisy.named_buffers())
    with torch.no_grad():
        for name, p in fixed.named_parameters():
            if (added := noise.get(f"{name}_noise")) is not None:
                p.add_(added)
    return fixed


def noised(model: nn.Module) -> set[str]:
    return {name.removesuffix("_noise") for name, _ in model.named_buffers() if name.endswith("_noise")}


class First(nn.Module):
    """The first output of a layer."""

    def __init__(self, layer: nn.Module, copies: int = 1) -> None:
        super().__init__()
        self.layer, self.copies = layer, copies

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(*[x] * self.copies)
        return output if isinstance(output, Tensor) else output[0]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "bilinear": (lambda: First(nn.Bilinear(4, 4, 3), 2), (4,)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, groups=2), (4, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 3, 3, bias=False), (4, 5, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 3, 2, stride=2), (4, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 3, 2), (4, 5, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (2, 3, 4, 3)),
    "lstm": (lambda: First(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)), (5, 4)),
    "lstm with projection": (lambda: First(nn.LSTM(4, 3, proj_size=2, batch_first=True)), (5, 4)),
    "gru": (lambda: First(nn.GRU(4, 3, batch_first=True)), (5, 4)),
    "rnn": (lambda: First(nn.RNN(4, 3, bias=False, batch_first=True)), (5, 4)),
    "lstm cell": (lambda: First(nn.LSTMCell(4, 3)), (4,)),
    "gru cell": (lambda: nn.GRUCell(4, 3), (4,)),
    "rnn cell": (lambda: nn.RNNCell(4, 3), (4,)),
    "attention": (lambda: First(nn.MultiheadAttention(4, 2, batch_first=True), 3), (5, 4)),
}
every_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


@every_layer
def test_a_layer_works_with_its_parameters_plus_noise(make, shape) -> None:
    model, x = make().double(), torch.randn(3, *shape, dtype=torch.float64)
    plain = copy.deepcopy(model)
    WeightNoise(model, 0.7)
    assert noised(model) == {name for name, _ in model.named_parameters()}
    for _ in range(2):
        output = model(x)
        fixed = with_noise_as_weights(plain, model)
        torch.testing.assert_close(output, fixed(x))
        output.square().sum().backward()
        fixed(x).square().sum().backward()
        for p, expected in zip(model.parameters(), fixed.parameters(), strict=True):
            torch.testing.assert_close(p.grad, expected.grad)  # the identity, whatever the noise
            p.grad = None


@every_layer
@every_engine
def test_clipped_sums_are_those_of_each_example_alone_at_the_noisy_weights(make, shape, engine) -> None:
    model, x = make().double(), torch.randn(5, *shape, dtype=torch.float64)
    plain = copy.deepcopy(model)
    WeightNoise(model, 0.5)
    held_noise(model)(lambda: 7)  # as a run does for each batch
    norms, sums = measured(model, squares, (x,), 0.8, engine)
    truth = clipped_sum(with_noise_as_weights(plain, model), squares, (x,), 0.8)
    torch.testing.assert_close(norms, truth.norms, rtol=1e-9, atol=0)
    for name, expected in truth.sums.items():
        torch.testing.assert_close(sums[name], expected, rtol=1e-9, atol=1e-12)


def test_vmap_computes_its_chunks_at_the_noise_of_the_batch() -> None:
    model, x = cnn().double(), torch.randn(5, 3, 9, 7, dtype=torch.float64)
    plain = copy.deepcopy(model)
    WeightNoise(model, 0.5)
    held_noise(model)(lambda: 7)
    norms, _ = measured(model, squares, (x,), 0.8, Vmap(2))
    torch.testing.assert_close(norms, clipped_sum(with_noise_as_weights(plain, model), squares, (x,), 0.8).norms)


def test_every_layer_but_norms_and_embeddings_has_noise() -> None:
    model = Forward(
        lambda m, x: m.head(m.norm(m.lstm(m.words(x))[0][:, -1]) + m.shift),
        words=nn.Embedding(9, 4),
        lstm=nn.LSTM(4, 3, batch_first=True),
        norm=nn.LayerNorm(3),
        shift=nn.Parameter(torch.zeros(3)),
        head=nn.Linear(3, 2),
    )
    WeightNoise(model, 1.0)
    lstm = {f"lstm.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    assert noised(model) == lstm | {"head.weight", "head.bias"}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_noise_is_fresh_in_each_call_and_shared_by_the_batch(mode, training) -> None:
    model, row = cnn().train(training), torch.randn(1, 3, 9, 7)
    WeightNoise(model, 0.1)
    with mode():
        one, other = (model(row.expand(4, -1, -1, -1)) for _ in range(2))
    torch.testing.assert_close(one, one[:1].expand(4, -1))
    assert not torch.isclose(one, other, rtol=1e-3).any()


def test_noise_has_standard_deviation_sigma() -> None:
    layer = nn.Linear(400, 500)
    WeightNoise(layer, 0.3)
    with torch.no_grad():
        mean = torch.cat([layer.weight.t(), layer.bias.unsqueeze(0)])
        rows = layer(torch.cat([torch.eye(400), torch.zeros(1, 400)]))
    rows[:-1] -= rows[-1].clone()
    noise = rows - mean
    assert abs(float(noise[:-1].std()) / 0.3 - 1) < 0.01  # six times its own deviation
    assert abs(float(noise[-1].std()) / 0.3 - 1) < 0.2
    assert abs(float(noise.mean())) < 0.01


def test_a_sigma_of_zero_does_not_change_the_model() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    plain, x = copy.deepcopy(model), torch.randn(4, 6)
    WeightNoise(model, 0.0)
    torch.manual_seed(1)
    expected = plain(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), expected)
    assert not list(model.buffers())


def test_noise_repeats_with_the_seed() -> None:
    model, x = mlp(), torch.randn(2, 6)
    WeightNoise(model, 0.1)
    torch.manual_seed(1)
    first = model(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), first)


def test_names_parameters_and_optimizer_stay_as_they_are() -> None:
    model, seen = mlp(), []
    keys, parameters = list(model.state_dict()), dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightNoise(model, 0.5)
    model[3].register_forward_hook(lambda *_: seen.append(dict(model.named_parameters())))
    means = {name: p.detach().clone() for name, p in parameters.items()}
    model(torch.randn(4, 6)).square().sum().backward()
    assert list(model.state_dict()) == keys
    for named in (dict(model.named_parameters()), *seen):
        assert list(named) == list(parameters)
        assert all(named[name] is p for name, p in parameters.items())
    optimizer.step()
    for name, p in parameters.items():
        assert p.grad is not None
        torch.testing.assert_close(p.detach(), means[name] - 0.1 * p.grad)


def test_noise_is_converted_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(6, 5), First(nn.LSTM(5, 3)))
    WeightNoise(model, 0.5)
    assert model.double()(torch.randn(4, 6, dtype=torch.float64)).dtype is torch.float64


def leave(model: nn.Module, how: str) -> nn.Module:
    if how == "deep copy":
        return copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Text(nn.Module):
    """A model with layers that have noise and layers that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.norm, self.head = nn.LSTM(4, 3, batch_first=True), nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(x)[0][:, -1]))


@pytest.mark.parametrize("each_time_step", [False, True])
@pytest.mark.parametrize("how", ["deep copy", "file"])
def test_a_copy_has_its_own_noise_and_parameters(how: str, each_time_step: bool) -> None:
    model, x = Text(), torch.randn(3, 5, 4)
    noise = WeightNoise(model, 0.5, each_time_step=each_time_step)
    model(x)
    copied = leave(model, how)
    noise.remove()
    expected = model(x)
    assert torch.equal(model(x), expected)
    before = [buffer.clone() for buffer in copied.buffers()]
    assert not torch.isclose(copied(x), copied(x)).any()
    assert all((one != other).all() for one, other in zip(before, copied.buffers(), strict=True))
    copied(x).sum().backward()
    assert all(p.grad is not None for p in copied.parameters())
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        for p in copied.parameters():
            p.mul_(1e4)
    assert copied(1e4 * x).abs().max() > 1e3


@pytest.mark.parametrize("each_time_step", [False, True])
def test_remove_leaves_the_model_as_it_was(each_time_step: bool) -> None:
    model, x = Text(), torch.randn(3, 5, 4)
    expected, attributes = model(x), [set(vars(part)) for part in model.modules()]
    noise = WeightNoise(model, 0.5, each_time_step=each_time_step)
    assert not torch.isclose(model(x), expected).all()
    noise.remove()
    noise.remove()
    assert torch.equal(model(x), expected)
    assert [set(vars(part)) for part in model.modules()] == attributes
    assert not list(model.buffers())
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
    WeightNoise(model, 0.5)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_call_that_fails_restores_the_parameters(error: type[BaseException]) -> None:
    model, x = Text(), torch.randn(3, 5, 4)
    plain = copy.deepcopy(model)

    def fails(*_) -> None:
        raise error

    noise = WeightNoise(model, 0.5)
    handle = model.lstm.register_forward_hook(fails)
    with pytest.raises(error):
        model(x)
    handle.remove()
    torch.testing.assert_close(model(x), with_noise_as_weights(plain, model)(x))
    assert all(not isinstance(value, Tensor) for part in model.modules() for value in vars(part).values())
    with pytest.raises(RuntimeError, match="input"):
        model(torch.randn(3, 5, 7))
    assert all(not isinstance(value, Tensor) for part in model.modules() for value in vars(part).values())
    noise.remove()
    assert torch.equal(model(x), plain(x))


class Wide(nn.Linear):
    """A layer that calls a layer of its own, and also reads that layer's weight."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.inner, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.norm(self.inner(input))) + nn.functional.linear(input, self.inner.weight)


def test_a_layer_within_a_layer_has_noise_until_the_outer_layer_returns() -> None:
    model, x = Wide(), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    WeightNoise(model, 0.5)
    assert noised(model) == {"weight", "bias", "inner.weight", "inner.bias"}
    torch.testing.assert_close(model(x), with_noise_as_weights(plain, model)(x))


def test_a_shared_parameter_has_one_draw_of_noise() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5, bias=False))
    model[2].weight = model[0].weight
    WeightNoise(model, 0.5)
    model.double()(torch.randn(3, 5, dtype=torch.float64))
    assert torch.equal(model[0].weight_noise, model[2].weight_noise)
    assert model[0].weight_noise.abs().min() > 0


def test_a_submodule_alone_can_have_noise() -> None:
    model, x = mlp(), torch.randn(3, 6)
    WeightNoise(model[4], 0.5)
    assert noised(model) == {"4.weight", "4.bias"}
    assert not torch.isclose(model(x), model(x)).any()


def test_with_layer_norm_the_noisy_model_does_not_depend_on_the_scale_of_weights_and_noise() -> None:
    def outputs(scale: float) -> Tensor:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8, eps=0.0), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4, eps=0.0)
        ).double()
        x = torch.randn(5, 6, dtype=torch.float64)
        with torch.no_grad():
            for part in (model[0], model[3]):
                part.weight.mul_(scale)
                part.bias.mul_(scale)
        WeightNoise(model, 2.0 * scale)
        return model(x)

    torch.testing.assert_close(outputs(1000.0), outputs(1.0))
    torch.testing.assert_close(outputs(1e-6), outputs(1.0))


def test_an_lstm_has_one_draw_for_the_whole_sequence() -> None:
    lstm, x = nn.LSTM(4, 3, batch_first=True).double(), torch.randn(2, 6, 4, dtype=torch.float64)
    WeightNoise(lstm, 0.8)
    output = lstm(x)[0]
    noise = dict(lstm.named_buffers())
    noisy = tuple(p + noise[f"{name}_noise"] for name, p in lstm.named_parameters())
    torch.testing.assert_close(output, lstm_by_hand(x, lambda: noisy))


@pytest.mark.parametrize("noise_first", [True, False])
def test_noise_may_come_before_or_after_the_bound(noise_first: bool) -> None:
    model, x = cnn().double(), torch.randn(4, 3, 9, 7, dtype=torch.float64)
    plain = copy.deepcopy(model)
    if noise_first:
        WeightNoise(model, 0.3)
    with closing(PerExampleClip(model, 0.5)) as clip:
        if not noise_first:
            WeightNoise(model, 0.3)
        held_noise(model)(lambda: 7)
        clip.accumulate(squares, x)
        [total] = clip.pop_sums()
    truth = clipped_sum(with_noise_as_weights(plain, model), squares, (x,), 0.5)
    torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), truth.vector)


def train_privately(model: nn.Module, data: tuple[Tensor, ...], loss: Callable[..., Tensor], size: int = 8) -> None:
    """Three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with privatize(
        PerExampleClip(model, 1.0),
        optimizer,
        data,
        noise_multiplier=1.0,
        expected_batch_size=10,
        public_size=20,
        steps=3,
        delta=1e-3,
    ) as run:
        for batch in run.batches():
            for parts in batch.microbatches(size):
                run.accumulate(loss, *parts)
            optimizer.step()


def test_a_noisy_model_trains_privately() -> None:
    model = Text()
    WeightNoise(model, 0.5)
    before = [p.detach().clone() for p in model.parameters()]
    train_privately(model, (torch.randn(20, 5, 4), torch.randint(0, 2, (20,))), cross_entropy)
    assert all((p != old).any() for p, old in zip(model.parameters(), before, strict=True))


def test_noise_at_each_time_step_is_not_private() -> None:
    model = Text()
    WeightNoise(model, 0.5, each_time_step=True)
    with pytest.raises(PrivacyError, match="leave each_time_step out"):
        train_privately(model, (torch.randn(20, 5, 4), torch.randint(0, 2, (20,))), cross_entropy)


@pytest.mark.parametrize("each_time_step", [False, True])
def test_all_microbatches_of_a_private_batch_have_one_draw(each_time_step: bool) -> None:
    """Otherwise one record more moves those behind it to other draws, and the sum by more than the clipping norm."""
    model, found = mlp(), list[float]()
    WeightNoise(model, 0.5, each_time_step=each_time_step)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        found.append(model(torch.ones(1, 6))[0, 0].item())
        return model(x).square().sum(1)

    train_privately(model, (torch.randn(20, 6),), loss, size=1)
    assert len(found) > 3
    assert len(set(found)) == 3, "one in each of three steps"
    with torch.no_grad():
        assert model(torch.ones(1, 6))[0, 0] != model(torch.ones(1, 6))[0, 0], "each call has its own afterwards"


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_noise_that_is_drawn_around_the_model_of_a_run_is_refused() -> None:
    inner = mlp()
    outer = Outer(inner)
    WeightNoise(outer, 0.5)
    with pytest.raises(PrivacyError, match="before it is wrapped"):
        train_privately(inner, (torch.randn(20, 6),), lambda model, x: outer(x).square().sum(1))


def test_a_copy_that_is_made_within_a_batch_draws_its_own_noise() -> None:
    model, copies = mlp(), list[nn.Module]()
    WeightNoise(model, 0.5)

    class Copying(Dataset[tuple[Tensor]]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor]:
            copies.append(pickle.loads(pickle.dumps(model)))
            return (torch.ones(6),)

    train_privately(model, Copying(), squares)
    x = torch.ones(1, 6)
    assert (copies[0](x) != copies[0](x)).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_part_repeats_its_noise(reentrant: bool) -> None:
    model = Forward(
        lambda m, x: m.head(checkpoint(m.body, x, use_reentrant=reentrant)), body=mlp(), head=nn.Linear(4, 2)
    )
    plain, x = copy.deepcopy(model), torch.randn(4, 6, requires_grad=True)
    WeightNoise(model, 0.3)
    model(x).square().sum().backward()
    fixed = with_noise_as_weights(plain, model)
    fixed(x).square().sum().backward()
    for p, expected in zip(model.parameters(), fixed.parameters(), strict=True):
        torch.testing.assert_close(p.grad, expected.grad)


@pytest.mark.parametrize("noise_first", [True, False])
def test_public_statistics_and_their_gradients_are_those_at_the_same_noise(noise_first: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False)).double()
    linear, public, x = copy.deepcopy(model[0]), *(torch.randn(n, 6, dtype=torch.float64) for n in (9, 4))
    if noise_first:
        WeightNoise(model, 0.5)
    convert_batch_norm(model, to=noisette.nn.PublicBatchNorm, public=public)
    if not noise_first:
        WeightNoise(model, 0.5)

    def by_hand(fixed: nn.Module, x: Tensor) -> Tensor:
        z = fixed(public)
        return (fixed(x) - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()

    def loss(fixed: nn.Module, x: Tensor) -> Tensor:
        return (by_hand(fixed, x) - 0.3).square().sum(1)

    for k in range(2):
        let_go = held_noise(model)(lambda k=k: k)
        norms, sums = measured(model, squares, (x,), 0.5, BookKeeping())
        let_go()
        truth = clipped_sum(with_noise_as_weights(nn.Sequential(linear), model), loss, (x,), 0.5)
        torch.testing.assert_close(norms, truth.norms)
        for name, expected in truth.sums.items():
            torch.testing.assert_close(sums[name], expected)
    output = model.eval()(x)
    torch.testing.assert_close(output, by_hand(with_noise_as_weights(nn.Sequential(linear), model), x))


EVERY_NORM = {
    "public": noisette.nn.PublicBatchNorm,
    "per example": noisette.nn.PerExampleBatchNorm,
    "per example, exact": noisette.nn.ExactPerExampleBatchNorm,
    "frozen": noisette.nn.FrozenBatchNorm,
    "mixture": MixtureBatchNorm,
    "group": nn.GroupNorm,
    "layer": nn.LayerNorm,
    "instance": nn.InstanceNorm2d,
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", EVERY_NORM.values(), ids=EVERY_NORM)
def test_every_norm_works_on_the_noisy_weights(norm: type[nn.Module], training: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2, bias=False), nn.BatchNorm2d(4)
    ).double()
    own = issubclass(norm, noisette.nn.FrozenBatchNorm) or norm.__module__.startswith("torch.")
    public = None if own else torch.randn(7, 2, 6, 6, dtype=torch.float64)
    plain = convert_batch_norm(model, to=norm, public=public).train(training)
    model, x = copy.deepcopy(plain), torch.randn(5, 2, 6, 6, dtype=torch.float64)
    WeightNoise(model, 0.4)
    for _ in range(2):
        output = model(x)
        torch.testing.assert_close(output, with_noise_as_weights(plain, model)(x))


def test_a_transformer_has_noise_in_evaluation_mode() -> None:
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    plain, x = copy.deepcopy(model), torch.randn(3, 5, 4)
    WeightNoise(model, 0.3)
    with torch.no_grad():
        output = model(x)
    torch.testing.assert_close(output, with_noise_as_weights(plain, model)(x))


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), float("inf")])
def test_sigma_must_be_finite_and_not_negative(sigma: float) -> None:
    with pytest.raises(ValueError, match=f"expected a finite sigma >= 0, got sigma={sigma}"):
        WeightNoise(mlp(), sigma)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear, convolutional or recurrent layer"):
        WeightNoise(nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4)), 0.1)


class OwnLSTM(nn.LSTM):
    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None):
        return super().forward(2 * input, hx)


def test_all_layers_that_cannot_have_noise_are_listed_and_the_model_is_not_changed() -> None:
    model = nn.ModuleDict(
        {
            "lazy": nn.LazyLinear(3),
            "orthogonal": parametrizations.orthogonal(nn.Linear(3, 3)),
            "pruned": prune.l1_unstructured(nn.Linear(3, 3), "weight", 0.5),
            "noisy": nn.Linear(3, 3),
            "own": OwnLSTM(3, 4),
            "projected": nn.LSTM(3, 4, proj_size=2),
            "stepped": nn.GRU(3, 4),
            "fine": nn.Linear(3, 3),
        }
    )
    WeightNoise(model["noisy"], 0.1)
    WeightNoise(model["stepped"], 0.1, each_time_step=True)
    with pytest.raises(ValueError, match="7 layers cannot have weight noise") as refused:
        WeightNoise(model, 0.1, each_time_step=True)
    said = dict(line.split(": ", 1) for line in str(refused.value).split("\n  ")[1:])
    assert list(said) == list(model)[:-1]
    assert "no shape yet" in said["lazy"]
    assert all("computed from others" in said[name] for name in ("orthogonal", "pruned"))
    assert all("already" in said[name] for name in ("noisy", "stepped"))
    assert all("use each_time_step=False" in said[name] for name in ("own", "projected"))
    assert not model["fine"]._buffers
    assert not model["fine"]._forward_pre_hooks
