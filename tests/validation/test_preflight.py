"""The preflight on many models: those that mix examples are refused, others pass, and none is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_cases import CASES, Case, Forward, attention, cnn, mlp, parameter, recurrent
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, PerExampleLoop, TwoPass, TwoPasses, Vmap
from noisette.validation import Call, prove
from noisette.validation.deterministic import DisableRandomness

ENGINES = [BookKeeping(), TwoPass(), TwoPasses(), PerExampleLoop()]
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)


def check(model: nn.Module, *inputs: Tensor, engine=None) -> None:
    clip = PerExampleClip(model, 1.0, engine=engine)
    try:
        prove(clip, Call(inputs, {}))
    finally:
        clip.close()


class Between(nn.Module):
    """Two linear layers with a function of the batch between them."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.middle, self.second = nn.Linear(6, 5), Function(function), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.middle(self.first(x)))


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def attention_over_the_batch(x: Tensor) -> Tensor:
    return (x @ x.t()).softmax(1) @ x


def experts_with_capacity(x: Tensor) -> Tensor:
    """Only the first two examples of each sign are served."""
    served = ((x[:, 0] > 0).cumsum(0) <= 2) & ((x[:, 0] <= 0).cumsum(0) <= 2)
    return x * served.unsqueeze(1)


MIXING = {
    "centring": lambda x: x - x.mean(0),
    "centring, detached": lambda x: x - x.mean(0).detach(),
    "scaling by the largest": lambda x: x / x.abs().max(),
    "scaling by the largest, detached": lambda x: x / x.detach().abs().max(),
    "softmax over the batch": lambda x: x.softmax(0),
    "attention over the batch": attention_over_the_batch,
    "sorting over the batch": lambda x: x.sort(0).values,
    "sorting by length": lambda x: x[x.sum(1).argsort()],
    "cumulative sum": lambda x: x.cumsum(0),
    "neighbour": lambda x: x + x.roll(1, 0),
    "experts with capacity": experts_with_capacity,
    "batch norm by hand": lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 0.1).sqrt(),
    "gradient of others alone": lambda x: x + x.mean(0) - x.mean(0).detach(),
}


@every_engine
@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING)
def test_mixing_is_refused(function, engine) -> None:
    said = "changes the output of an example when the other examples change|mixes examples in its gradient"
    with pytest.raises(PrivacyError, match=said):
        check(Between(function), torch.randn(4, 6), engine=engine)


def twelve_to_an_expert(x: Tensor) -> Tensor:
    """Only the first twelve examples of each sign are served."""
    served = ((x[:, 0] > 0).cumsum(0) <= 12) & ((x[:, 0] <= 0).cumsum(0) <= 12)
    return x * served.unsqueeze(1)


CROWDED = {
    "centring of sixteen or more": lambda x: x - x.mean(0) if len(x) >= 16 else x,
    "scaling by the size beyond ten": lambda x: x * min(1.0, 10 / len(x)),
    "twelve to an expert": twelve_to_an_expert,
}


@pytest.mark.parametrize("function", CROWDED.values(), ids=CROWDED)
@pytest.mark.parametrize("size", [2, 40])
def test_coupling_that_begins_at_a_size_is_refused_whatever_the_batch(function, size: int) -> None:
    with pytest.raises(PrivacyError, match="differs between a batch of 32 examples and one of 8"):
        check(Between(function), torch.randn(size, 6))


def test_a_model_that_needs_a_batch_is_refused() -> None:
    def statistics(x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    with pytest.raises(PrivacyError, match="fails on a batch of one example: Expected more than 1 value"):
        check(Between(statistics), torch.randn(4, 6))


def test_the_mixing_module_is_named() -> None:
    with pytest.raises(PrivacyError, match=r"middle \(Function\) changes the output of an example"):
        check(Between(MIXING["centring"]), torch.randn(4, 6))
    with pytest.raises(PrivacyError, match="mixes examples in its gradient"):
        check(Between(MIXING["gradient of others alone"]), torch.randn(4, 6))


class Memory(nn.Module):
    """A layer whose output depends on running statistics."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(6, 3), in_place
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fresh = 0.5 * self.mean + 0.5 * x.mean(0)
            if self.in_place:
                self.mean.copy_(fresh)
            else:
                self.mean = fresh
        return self.layer(x - self.mean)


@every_engine
@pytest.mark.parametrize("in_place", [True, False])
def test_running_statistics_are_refused_and_restored(engine, in_place: bool) -> None:
    model = Memory(in_place=in_place)
    with pytest.raises(PrivacyError, match="the sum of a batch differs"):
        check(model, torch.randn(4, 6), engine=engine)
    assert torch.equal(model.mean, torch.zeros(6))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(5),
        nn.BatchNorm1d(5, affine=False),
        nn.SyncBatchNorm(5),
        nn.BatchNorm1d(5, track_running_stats=False).eval(),
    ],
)
def test_batch_norm_is_refused_by_name(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 3))
    with pytest.raises(
        PrivacyError, match=rf"1  {type(norm).__name__} mixes examples: put PublicBatchNorm or GroupNorm"
    ):
        check(model, torch.randn(4, 6))


class Stateful(nn.Module):
    """Base of layers with state of earlier inputs, or with experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.kept = nn.Linear(6, 3), 0, None
        self.experts = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
        self.register_buffer("seen", torch.zeros(()), persistent=False)


class CountsCalls(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls


class ScaledByAllItSaw(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum()
        return self.layer(x) * (1 + self.seen.tanh())


class LooksBack(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        y, self.kept = self.layer(x if self.kept is None else x + self.kept), x.detach().mean(0)
        return y


class RoutesWithCapacity(Stateful):
    """Each expert serves at most five eighths of the batch; further examples get zeros."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, capacity = (x[:, 0] > 0).long(), -(-5 * len(x) // 8)
        output = x.new_zeros(len(x), 3)
        for k, expert in enumerate(self.experts):
            served = (chosen == k) & ((chosen == k).cumsum(0) <= capacity)
            output = output + expert(x) * served.unsqueeze(1)
        return output


class CentresBetweenItsParts(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        h = self.experts[0](x)
        return self.experts[1](torch.cat([h - h.mean(0), h], 1))


class Contrasts(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        return (z @ z.t()).log_softmax(1)[:, :1]


KEPT = [CountsCalls, ScaledByAllItSaw, LooksBack, RoutesWithCapacity, CentresBetweenItsParts, Contrasts]


@every_engine
@pytest.mark.parametrize("kind", KEPT, ids=lambda k: k.__name__)
def test_the_module_that_mixes_examples_is_named_not_a_later_one(kind: type[nn.Module], engine) -> None:
    with pytest.raises(PrivacyError, match=rf"1 \({kind.__name__}\) changes the output of an example"):
        check(nn.Sequential(nn.Linear(6, 6), kind()), torch.randn(4, 6), engine=engine)


class CountsExamples(nn.Module):
    """Counts its examples; their number is private."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.layer(x)


def test_a_model_that_counts_its_examples_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"stores information about its inputs in 1\.seen"):
        check(nn.Sequential(nn.Linear(6, 6), CountsExamples()), torch.randn(4, 6))


class Rounded(nn.Module):
    """Gives other values in a batch than alone, but only in single precision, as a rounding error could."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.1 if len(x) > 1 and x.dtype is torch.float32 else x


def test_differences_by_rounding_are_decided_in_double_precision() -> None:
    model = nn.Sequential(nn.Linear(6, 5), Rounded(), nn.Linear(5, 3))
    before = {name: (value, value.clone()) for name, value in model.named_parameters()}
    check(model, torch.randn(4, 6))
    for name, value in model.named_parameters():
        assert value is before[name][0]
        assert value.dtype is torch.float32
        assert torch.equal(value, before[name][1])
    with pytest.raises(PrivacyError, match="changes the output of an example when the other examples change"):
        check(nn.Sequential(model, nn.Linear(3, 3), Function(lambda x: x + x.mean(0))), torch.randn(4, 6))


def test_running_statistics_of_instance_norm_are_refused() -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten())
    with pytest.raises(PrivacyError, match="1  InstanceNorm1d mixes examples in its running statistics"):
        check(model, torch.randn(4, 2, 6))
    check(model.eval(), torch.randn(4, 2, 6))


def test_every_batch_norm_is_listed() -> None:
    with pytest.raises(PrivacyError, match=r"2 modules of the model mix examples:\n  0 .*\n  2 "):
        check(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5)), torch.randn(4, 6))


def test_batch_norm_in_evaluation_mode_is_accepted() -> None:
    norm = nn.BatchNorm1d(5).eval().requires_grad_(False)
    check(nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 3)), torch.randn(4, 6))


def test_examples_on_the_second_axis_inside_a_model_are_accepted() -> None:
    for model in (nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))):
        transposing = Forward(lambda m, x: m.body(x.transpose(0, 1)).transpose(0, 1), body=model)
        for length in (8, 16):  # a multiple of the eight examples of the check
            check(transposing, torch.randn(4, length, 6))


class Doubled:
    """An engine that returns twice the clipped sum."""

    def clipped_sum(self, forward, parameters, clipping):
        clipped = BookKeeping().clipped_sum(forward, parameters, clipping)
        return replace(clipped, sums={name: 2 * g for name, g in clipped.sums.items()})


class Unclipped:
    def clipped_sum(self, forward, parameters, clipping):
        return BookKeeping().clipped_sum(forward, parameters, replace(clipping, factors=torch.ones_like))


@pytest.mark.parametrize("engine", [Doubled(), Unclipped()], ids=lambda e: type(e).__name__)
def test_engine_that_does_not_bound_is_refused(engine) -> None:
    with pytest.raises(PrivacyError, match="one example alone moves the sum by"):
        check(mlp(), torch.randn(4, 6), engine=engine)


class FreshMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * (torch.rand(x.shape[0], 1) > 0.3))


class HidesWords(nn.Module):
    """Predicts the few words that it hides, as models of language are trained; at most draws it hides none."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        words, is_hidden = x.detach().abs().long() % 9, torch.rand(x.shape) < 0.15
        scores = self.out(self.table(torch.where(is_hidden, 0, words)).tanh())
        return (F.cross_entropy(scores.transpose(1, 2), words, reduction="none") * is_hidden).sum(1)


class OwnGenerator(nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self, own: Any, draw: Callable[[Any, tuple[int, ...]], Any]) -> None:
        super().__init__()
        self.layer, self.own, self.draw = nn.Linear(6, 3), own, draw

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.as_tensor(self.draw(self.own, tuple(x.shape)), dtype=x.dtype))


HARMLESS = {
    "few hidden words": (HidesWords, (6,)),
    "a generator of torch": (
        lambda: OwnGenerator(torch.Generator(), lambda own, size: torch.randn(size, generator=own)),
        (6,),
    ),
    "one number of a generator of NumPy": (
        lambda: OwnGenerator(np.random.default_rng(0), lambda own, size: own.choice([1.0, 2.0], size=1)),
        (6,),
    ),
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (3, 9, 6)),
    "recurrent loop": (recurrent, (5, 5)),
    "attention over positions": (attention, (5, 6)),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), (6,)),
    "channel dropout": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.LazyLinear(3)),
        (3, 6, 6),
    ),
    "alpha dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(8, 3)), (6,)),
    "random mask of its own": (FreshMask, (6,)),
    "dropout in attention": (
        lambda: Forward(
            lambda m, x: F.scaled_dot_product_attention(m.q(x), m.k(x), x, dropout_p=0.4),
            q=nn.Linear(6, 6),
            k=nn.Linear(6, 6),
        ),
        (5, 6),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.Flatten()),
        (3, 5, 5),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)), (6,)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6), nn.Flatten()), (3, 5, 5)),
    "residual": (lambda: Forward(lambda m, x: x + m.body(x), body=mlp_of_width_6()), (6,)),
    "class token": (
        lambda: Forward(
            lambda m, x: m.out(x + m.token.expand(x.shape[0], -1, -1)), token=parameter(1, 1, 6), out=nn.Linear(6, 3)
        ),
        (5, 6),
    ),
    "tiny gradients": (lambda: nn.Sequential(nn.Linear(6, 5), Function(lambda x: x * 1e-8)), (6,)),
    "huge gradients": (lambda: nn.Sequential(nn.Linear(6, 5), Function(lambda x: x * 1e8)), (6,)),
    "pooling and sorting within an example": (
        lambda: nn.Sequential(nn.Conv1d(3, 6, 3), nn.MaxPool1d(2), Function(lambda x: x.sort(2).values), nn.Flatten()),
        (3, 9),
    ),
    "spectral norm that evaluates": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)).eval()),
        (6,),
    ),
}


def mlp_of_width_6() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 6))


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(("model", "shape"), HARMLESS.values(), ids=HARMLESS)
def test_harmless_models_pass(model, shape: tuple[int, ...]) -> None:
    for engine, b in [*((engine, 4) for engine in ENGINES), (ENGINES[0], 8), (ENGINES[0], 1)]:
        made = model()
        made(torch.randn(2, *shape))  # initialises lazy layers
        check(made, torch.randn(b, *shape), engine=engine)


def test_noise_of_each_record_from_a_generator_of_numpy_is_told_from_coupling() -> None:
    own = np.random.default_rng(0)
    model = nn.Sequential(OwnGenerator(own, lambda own, size: own.standard_normal(size)))
    with pytest.raises(PrivacyError, match=r"the numbers of 0\.own: .* draw from torch"):
        check(model, torch.randn(4, 6))
    assert own.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_every_case_of_the_engines_passes(case: Case) -> None:
    model, inputs = case.model(), case.inputs(5)
    for engine in ENGINES:
        check(model, *(inputs[:1]), engine=engine)


def test_a_model_without_any_gradient_is_refused_because_nothing_could_be_checked() -> None:
    with pytest.raises(PrivacyError, match=r"no public inputs that give .* other than zero in 0\.weight"):
        check(nn.Sequential(nn.Linear(6, 5), Function(lambda x: x * 0), nn.Linear(5, 3, bias=False)), torch.randn(4, 6))


def test_embeddings_and_keyword_arguments() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

        def forward(self, *, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {"scores": self.out((self.table(ids) * mask.unsqueeze(2)).sum(1))}

    clip = PerExampleClip(Words(), 1.0)
    prove(clip, Call((), {"ids": torch.randint(0, 20, (3, 5)), "mask": torch.ones(3, 5)}))
    clip.close()


def test_a_model_without_an_output_per_example_is_refused() -> None:
    with pytest.raises(PrivacyError, match="one row per example"):
        check(Forward(lambda m, x: m.layer(x).sum(), layer=nn.Linear(6, 3)), torch.randn(4, 6))


def test_only_shapes_of_the_input_are_read() -> None:
    check(mlp(), torch.full((4, 6), float("nan")))


@pytest.mark.parametrize("function", ["centring", "experts with capacity"])
def test_mixing_is_refused_also_inside_disable_randomness(function: str) -> None:
    with DisableRandomness(), pytest.raises(PrivacyError, match="middle"):
        check(Between(MIXING[function]), torch.randn(4, 6))


def test_the_checks_change_nothing() -> None:
    """Buffers, random state, modes, gradients and pending sums stay the same."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5, affine=False).eval(), nn.Linear(5, 3))
    model.register_buffer("counter", torch.zeros(()))
    model.register_forward_pre_hook(lambda m, args: m.counter.add_(1) and None)
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    clip = PerExampleClip(model, 1.0)
    prove(clip, Call((torch.randn(4, 6),), {}))
    [pending] = clip.pop_sums()
    clip.close()
    assert not any(g.any() for g in pending.grads)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert model(torch.zeros(1, 6)).requires_grad
    assert not model._forward_hooks


def test_models_with_buffers_pass_where_calls_are_repeated() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False).eval(), nn.Linear(5, 3))
    check(model, torch.randn(4, 6), engine=Vmap())


def test_the_random_state_is_restored() -> None:
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5)), torch.randn(4, 6)
    before = torch.get_rng_state()
    check(model, x)
    assert torch.equal(torch.get_rng_state(), before)


class Remembers(nn.Module):
    """Writes its latest input into a buffer that no output depends on."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("latest", torch.zeros(4), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        self.latest.copy_(x[0].detach())
        return self.layer(x)


def test_a_model_that_keeps_its_inputs_where_they_would_be_saved_is_refused() -> None:
    model = Remembers()
    refused = pytest.raises(PrivacyError, match="stores information about its inputs in latest")
    with closing(PerExampleClip(model, 1.0)) as clip, refused:
        prove(clip, Call((torch.randn(2, 4),), {}))
    assert not model.latest.any(), "the buffer is restored"


def test_buffers_that_are_not_saved_or_depend_on_weights_only_are_accepted() -> None:
    for model in (Remembers(persistent=False), nn.utils.spectral_norm(nn.Linear(4, 3))):
        with closing(PerExampleClip(model, 1.0)) as clip:
            prove(clip, Call((torch.randn(2, 4),), {}))
