"""Features of PyTorch modules: each is exact, or refused with an alternative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine_check import check, measured
from model_cases import Case, Forward, cnn, cross_entropy, floats, ids, labelled, mlp, parameter, squares
from noisette import PerExampleClip
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from oracle import clipped_sum

WITH_RULES = [BookKeeping(), ReweightGP()]
every_engine = pytest.mark.parametrize("engine", [*WITH_RULES, PerExampleLoop()], ids=lambda e: type(e).__name__)


def frozen(*kinds: type[nn.Module] | str) -> Callable[[], nn.Module]:
    """The small convolutional net with layers of these types, or parameters of these names, frozen."""

    def make() -> nn.Module:
        model = cnn()
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                p.requires_grad_(
                    not (isinstance(module, tuple(k for k in kinds if not isinstance(k, str))) or name in kinds)
                )
        return model

    return make


def shared_across() -> nn.Module:
    """Three modules of different kinds hold one parameter."""
    model = Forward(
        lambda m, x: F.linear(m.second(torch.tanh(m.first(m.words(x)))), m.first.weight.t()),
        words=nn.Embedding(6, 6),
        first=nn.Linear(6, 6),
        second=nn.Linear(6, 6, bias=False),
    )
    model.second.weight = model.first.weight
    model.words.weight = model.first.weight
    return model


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([parameter(5, 5) for _ in range(3)])
        self.named = nn.ParameterDict({"scale": parameter(5), "shift": parameter(5)})
        self.branches = nn.ModuleDict({"a": nn.Linear(5, 4), "b": nn.Linear(5, 4)})

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            x = torch.tanh(x @ w) * self.named["scale"] + self.named["shift"]
        return self.branches["a"](x) - self.branches["b"](x)


class Inputs(nn.Module):
    """Ids, a number, a boolean and a mask for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.number, self.out = nn.Embedding(11, 5), nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, words: Tensor, numbers: Tensor, switch: Tensor, mask: Tensor) -> Tensor:
        h = self.words(words.long()).masked_fill(~mask.unsqueeze(2), 0).sum(1)
        h = h + torch.where(switch.bool().unsqueeze(1), self.number(numbers), torch.zeros(()).to(numbers.dtype))
        return self.out(h)


def mixed_inputs(b: int) -> tuple[Tensor, ...]:
    return (
        torch.randint(0, 11, (b, 6), dtype=torch.uint8),
        torch.randn(b, 3),
        torch.arange(b) % 2,
        torch.rand(b, 6) > 0.3,
    )


class Nested(nn.Module):
    """Outputs in a nested structure."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.near, self.far, self._wrap = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 2), wrap

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.body(x))
        return self._wrap(self.near(h), self.far(h))


def weighted_heads(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss from several outputs, weighted by the example's own label."""
    near, far = model(x)
    return F.cross_entropy(near, y % 3, reduction="none") + y * F.mse_loss(far, x[:, :2], reduction="none").mean(1)


def masked(m: Forward, x: Tensor, mask: Tensor) -> Tensor:
    return m.second(torch.tanh(m.first(x)) * mask)


def with_one_mask(model: nn.Module, x: Tensor) -> Tensor:
    """The mask is an input without example axis."""
    return model(x, torch.tensor([1, 0, 1, 1, 0], dtype=x.dtype)).square().sum(1)


CASES = [
    Case("biases alone", frozen("weight"), labelled(3, 9, 6), cross_entropy),
    Case("weights alone", frozen("bias"), labelled(3, 9, 6), cross_entropy),
    Case("norms alone", frozen(nn.Conv2d, nn.Linear), labelled(3, 9, 6), cross_entropy),
    Case("convolutions frozen", frozen(nn.Conv2d), labelled(3, 9, 6), cross_entropy),
    Case("head frozen", frozen(nn.Linear), labelled(3, 9, 6), cross_entropy),
    Case("shared by three modules", shared_across, ids(4, 6)),
    Case("lists and dictionaries of parameters", Lists, floats(5)),
    Case(
        "channels last",
        lambda: cnn().to(memory_format=torch.channels_last),
        lambda b: (torch.randn(b, 3, 9, 6).to(memory_format=torch.channels_last), torch.arange(b) % 4),
        cross_entropy,
    ),
    Case("integer and boolean inputs", Inputs, mixed_inputs),
    Case("input that belongs to no example", lambda: Forward(masked, first=nn.Linear(4, 5), second=nn.Linear(5, 2)),
         floats(4), with_one_mask),
    Case("loss of several outputs", lambda: Nested(lambda a, b: (a, b)), labelled(6), weighted_heads),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_clipped_sum_is_the_oracles(case: Case) -> None:
    for b in (7, 1, 2):
        check(case, *WITH_RULES, b=b, dtype=torch.float64)
    check(case, *WITH_RULES, b=6, dtype=torch.float32)


# Random operations: the draws are part of the graph, so the reference is the gradient of each loss on that graph


def clipped_on_one_graph(model: nn.Module, losses: Tensor, bound: float) -> Tensor:
    params = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in params), dtype=losses.dtype)
    for loss in losses:
        gradients = torch.autograd.grad(loss, params, retain_graph=True, materialize_grads=True)
        vector = torch.cat([g.flatten() for g in gradients])
        total += vector * min(1.0, bound / max(float(vector.norm()), 1e-30))
    return total


class StochasticDepth(nn.Module):
    """Each block is skipped at random, by each example."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x) * (torch.rand(len(x), 1) > 0.4).to(x.dtype)
        return x


RANDOM = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout1d(0.3), nn.Linear(8, 6)),
    "dropout in place": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 6)),
    "noise on activations": lambda: Forward(
        lambda m, x: m.b(m.a(x) + torch.randn(len(x), 5).to(x.dtype)), a=nn.Linear(6, 5), b=nn.Linear(5, 6)
    ),
    "depth of each example": StochasticDepth,
}
every_random = pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)


@every_random
@pytest.mark.parametrize("engine", WITH_RULES, ids=lambda e: type(e).__name__)
def test_draws_of_the_forward_pass_are_those_of_the_sum(make: Callable[[], nn.Module], engine: Engine) -> None:
    model, x = make().double().train(), torch.randn(7, 6, dtype=torch.float64)
    for bound in (1e-3, 1.0, 1e3):
        torch.manual_seed(5)
        losses = torch.func.vmap(lambda one: squares(model, one[None]).sum(), randomness="different")(x)
        truth = clipped_on_one_graph(model, losses, bound)
        torch.manual_seed(5)
        sums = measured(model, squares, (x,), bound, engine)[1]
        found = torch.cat([g.flatten() for g in sums.values()])
        assert float((found - truth).norm()) <= 1e-10 * float(truth.norm())


@every_engine
@every_random
def test_one_example_under_random_draws_stays_within_the_bound(make: Callable[[], nn.Module], engine: Engine) -> None:
    model = make().train()
    for _ in range(10):
        sums = measured(model, squares, (10 * torch.randn(1, 6),), 0.01, engine)[1]
        assert 0 < float(torch.cat([g.flatten() for g in sums.values()]).norm()) <= 0.01 * (1 + ROUNDING)


# Activations that are computed again


def checkpointed(reentrant: bool, *, input_needs_gradient: bool = False) -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        x = m.before(x) if not input_needs_gradient else x.requires_grad_()
        return m.after(checkpoint(m.inside, x, use_reentrant=reentrant))

    return Forward(forward, before=nn.Linear(6, 6), inside=mlp(), after=nn.Linear(4, 3))


@pytest.mark.filterwarnings("ignore")
@every_engine
@pytest.mark.parametrize("input_needs_gradient", [False, True])
def test_reentrant_checkpoints_run_once_and_are_exact(engine: Engine, input_needs_gradient: bool) -> None:
    model = checkpointed(True, input_needs_gradient=input_needs_gradient).double()
    other = checkpointed(False, input_needs_gradient=input_needs_gradient).double()
    other.load_state_dict(model.state_dict())
    x = torch.randn(4, 6, dtype=torch.float64)
    truth = clipped_sum(other, squares, (x,), 0.5)
    for name, g in measured(model, squares, (x,), 0.5, engine)[1].items():
        torch.testing.assert_close(g, truth.sums[name], rtol=1e-10, atol=1e-12)


# Half precision


# Compiled models


@pytest.fixture
def _compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


PLACES = {
    "the call": lambda model, compiled: (model, compiled),
    "the model": lambda model, compiled: (compiled, compiled),
    "a part": lambda model, compiled: (whole := nn.Sequential(compiled), whole),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("backend", ["aot_eager"])
@pytest.mark.parametrize("make", [lambda: twice_in_a_loop()], ids=["loop"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_compiled_is_exact(place, make: Callable[[], nn.Module], backend: str) -> None:
    torch.manual_seed(5)
    model, x = make().double(), torch.randn(5, 6, dtype=torch.float64)
    expected = measured(model, squares, (x,), 0.5, BookKeeping())[1]
    bounded, called = place(model, torch.compile(model, backend=backend))
    clip = PerExampleClip(bounded, 0.5, capture="eager")
    for _ in range(3):  # later calls reuse the compiled code
        clip.accumulate(lambda _, x: squares(called, x), x)
        [total] = clip.pop_sums()
        for found, truth in zip(total.grads, expected.values(), strict=True):
            torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-13)
    clip.close()


def twice_in_a_loop() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(m.layer(x)) * m.scale
        return x

    return Forward(forward, layer=nn.Linear(6, 6), scale=parameter(6))
