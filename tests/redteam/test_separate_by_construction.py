"""A record moves a sum by the clipping norm at most, whatever loss, model and backward pass do with a batch."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from model_cases import Forward
from noisette import PerExampleClip, PrivacyError, PrivateRun, engines
from oracle import clipped_sum
from small_loop import loss as cross_entropy
from small_loop import start, take_steps

C, N = 1.0, 24
MOST = 1 + 2.0**-13  # of the bound, for rounding
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(6))
FORGED = [X[:1] * 1e8, X[:1] * 1e-8, X[:1] * torch.nan, X[:1] * torch.inf, -X[:1] * 50]
ENGINES = [engines.BookKeeping(), engines.ReweightGP(), engines.PerExampleLoop(), engines.Vmap()]

Loss = Callable[..., Tensor]
one_by_one = pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
by_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)


def by_name(*functions: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("function", functions, ids=lambda f: f.__name__)


def run_of(model: nn.Module, data: Any, *, steps: int = 1, **clip: Any) -> PrivateRun:
    model.zero_grad()
    optimizer, clip = SGD(model.parameters(), lr=0.0), {"max_grad_norm": C, **clip}
    declared = {"sampling_rate": 1.0, "expected_batch_size": 1, "steps": steps, "noise_multiplier": 1e-9}
    return start(model, data, optimizer=optimizer, clip=clip, **declared)


def released(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, microbatch: int = 7) -> Tensor:
    torch.manual_seed(0)
    with run_of(model, (x, y)) as run:
        [step] = take_steps(run, loss, size=microbatch)
    return torch.cat([g.flatten() for g in step.grads.values()])


def assert_exact(found: Tensor, model: nn.Module, loss: Loss, *batch: Tensor) -> None:
    torch.testing.assert_close(found, clipped_sum(model, loss, batch, C).vector, rtol=1e-6, atol=1e-6)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def hard_examples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses * (losses > losses.detach().mean() - 1e-6)).sum()


def over_the_largest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses / losses.detach().max()).sum()


def class_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, weight=(1 + F.one_hot(y, 3).sum(0)).double().reciprocal())


def with_a_baseline(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    reward = (x.sum(1) > 0).double()
    return ((reward - reward.mean() + 0.5) * F.cross_entropy(model(x), y, reduction="none")).sum()


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.t() + model(x)[:, :1], torch.arange(len(x)))


def standardised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x - x.mean(0) + 0.1 * x, y)


def mixed_up(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, 0.5 * x + 0.5 * x.flip(0), y)


@by_name(hard_examples, over_the_largest, class_weights, with_a_baseline, standardised, mixed_up)
def test_a_record_moves_a_coupled_loss_by_no_more_than_the_bound(function: Loss) -> None:
    model = network()
    assert_exact(released(model, function, X, Y), model, function, X, Y)
    without = released(model, function, X[1:], Y[1:])
    for record in FORGED:
        assert (released(model, function, torch.cat([record, X[1:]]), Y) - without).norm() <= C * MOST


def test_a_loss_of_pairs_alone_is_refused() -> None:
    model = network()
    with pytest.raises(PrivacyError, match="Make each pair a record"):
        released(model, contrastive, X, Y)


def of_great_range(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) * torch.pow(10.0, 12 * (x[0, 0] - x[0, 1]).sign())


@one_by_one
def test_a_loss_of_great_range_is_exact() -> None:
    model = network()
    assert_exact(released(model, of_great_range, X, Y), model, of_great_range, X, Y)


@pytest.mark.parametrize("product", [lambda z, w: z @ w.T, F.linear, lambda z, w: (z * w[0]).cumsum(1)])
def test_gradients_of_complex_products_take_the_conjugate_factor(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    def loss(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        return product(torch.fft.fft(x), model.weight.to(torch.complex128)).abs().sum()

    model = nn.Linear(6, 3, bias=False).double()
    assert_exact(released(model, loss, X, Y), model, loss, X, Y)


BATCH = [  # centred, in attention to each other, sorted
    *(lambda x: x - 0.9 * x.mean(0), lambda x: torch.softmax(x @ x.t(), 1) @ x + x),
    lambda x: x[x.sum(1).argsort()],
]


@pytest.mark.parametrize("function", BATCH)
def test_a_record_moves_a_coupled_model_by_no_more_than_the_bound(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    gru = nn.GRU(1, 6, batch_first=True).requires_grad_(False)
    part = Forward(lambda m, x: function(x) + m.gru(x.unsqueeze(2))[0][:, -1], gru=gru)
    model = nn.Sequential(part, nn.Linear(6, 3)).double()
    without = released(model, cross_entropy, X[1:], Y[1:], microbatch=N)
    for record in FORGED:
        with_it = released(model, cross_entropy, torch.cat([record, X[1:]]), Y, microbatch=N)
        assert (with_it - without).norm() <= C * MOST


def keeping(forward: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return Forward(forward, layer=nn.Linear(6, 3), table=nn.Embedding(5, 6), kept=[])


def carries_detached(m: Any, x: Tensor) -> Tensor:
    last, m.kept = m.kept, [x.detach() * 2]
    return m.layer(x + sum(last, torch.zeros(6)))


def carries_the_argument(m: Any, x: Tensor) -> Tensor:
    last, m.kept = m.kept, [x]
    return m.layer(last[0] if last else x)


def branches_on_any(m: Any, x: Tensor) -> Tensor:
    return m.layer(x) - (100.0 if torch._is_any_true(x > 100) else 0.0)


def reads_a_text(m: Any, x: Tensor) -> Tensor:
    return m.layer(x) - (100.0 if "e+03" in repr(x) or "1000" in f"{x}" else 0.0)


def writes_a_weight(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.layer.bias.add_(x.mean())
    return m.layer(x)


def rescales_a_table(m: Any, x: Tensor) -> Tensor:
    return m.layer(F.embedding((x > 0).long()[:, :5], m.table.weight, max_norm=0.1).sum(1))


def begins_anew(m: Any, x: Tensor) -> Tensor:
    m.kept = [torch.zeros(6)]
    m.kept.append(m.kept[-1] + x.sum(0))
    return m.layer(m.kept[-1])[None]


HARMLESS = [reads_a_text, begins_anew]
SINGLE = X.float()


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x).square().sum()


def sums_of(make: Callable[[], nn.Module], batches: list[Tensor], loss: Loss = squares) -> list[Tensor]:
    torch.manual_seed(0)
    clip, found = PerExampleClip(make(), C), []
    clip.before_first_batch()
    for batch in batches:
        clip.accumulate(loss, batch, Y[: len(batch)])
        found.append(torch.cat([g.flatten() for g in clip.pop_sums()[0].grads]))
    return found


@one_by_one
@by_name(carries_detached, carries_the_argument, branches_on_any, writes_a_weight, rescales_a_table, *HARMLESS)
def test_no_value_reaches_another_example(function: Callable[[Any, Tensor], Tensor]) -> None:
    """One record of the first batch is replaced by an extreme one; the second batch is the same."""
    first, second = SINGLE[:6], SINGLE[6:12]
    other = first.clone()
    other[2] = 1e3
    try:
        one, two = (sums_of(lambda: keeping(function), batches) for batches in ([first, second], [other, second]))
    except PrivacyError:
        assert function not in HARMLESS
        return
    assert (one[0] - two[0]).norm() <= 2 * C * (1 + 1e-5)
    assert torch.equal(one[1], two[1])


@one_by_one
@pytest.mark.parametrize("carries", [carries_detached, carries_the_argument], ids=lambda f: f.__name__)
def test_no_value_reaches_the_example_that_is_computed_next(carries: Callable[[Any, Tensor], Tensor]) -> None:
    """A value that leaves torch makes the loss one that is called with one example after the other."""
    begun: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        return (carries(m, x) if len(begun) > 6 else m.layer(x)) * (1.0 if x.detach().numpy().sum() > 0 else 0.5)

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        begun.append(1)
        return squares(m, x, y)

    with pytest.raises(PrivacyError, match="an earlier call has computed from other examples"):
        sums_of(lambda: keeping(forward), [SINGLE[:6], SINGLE[6:12]], loss)


@one_by_one
def test_a_loss_that_writes_into_its_arguments_leaves_the_microbatch() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scale = 1.0 if float(x.sum()) > 0 else 0.5
        return m(x.div_(255)).square().sum() * scale

    batch = SINGLE[:6].clone()
    first, second = sums_of(lambda: nn.Linear(6, 3), [batch, batch], loss)
    assert torch.equal(batch, SINGLE[:6])
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("written", [False, True])
def test_numbers_of_a_batch_in_a_constant_that_the_loss_has_made_are_refused(written: bool) -> None:
    kept: dict[str, Tensor] = {}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(model(x), y, reduction="none") * kept.setdefault("made", torch.ones(3))[y]).sum()

    refusal = pytest.raises(PrivacyError, match="written to") if written else nullcontext()
    with run_of(network(), (X, Y), steps=3) as run, refusal:
        for batch in run.batches():
            for x, y in batch.microbatches(12):
                if written and kept:
                    kept["made"].fill_(float(x.mean()))
                run.accumulate(loss, x, y)
            run.optimizer.step()


def test_texts_are_read_one_example_at_a_time() -> None:
    clip, texts = PerExampleClip(network(), C), [f"text {k}" * (1 + k) for k in range(N)]
    for k in range(N):
        rows = slice(k, k + 1)
        clip.accumulate(lambda m, x, y, text: cross_entropy(m, x, y) * len(text[-1]), X[rows], Y[rows], texts[rows])
    found, lengths = torch.cat([g.flatten() for g in clip.pop_sums()[0].grads]), torch.tensor([*map(len, texts)])
    assert_exact(found, network(), lambda m, x, y, n: cross_entropy(m, x, y) * n, X, Y, lengths)


def time_first(m: Forward, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    return m.out(torch.tanh(m.hidden(x.transpose(0, 1).reshape(t * b, 6))).view(t, b, 6).mean(0))


@by_engine
@pytest.mark.parametrize("lengths", [(1, 4), (8, 1, 2)], ids=str)
def test_inputs_of_another_length_in_a_later_batch(engine: Any, lengths: tuple[int, ...]) -> None:
    """Rows of other examples must not be taken for an example's own, and clipped by their norm."""
    torch.manual_seed(6)
    model = Forward(time_first, hidden=nn.Linear(6, 6), out=nn.Linear(6, 3)).double()
    x = torch.randn(N, 8, 6, dtype=torch.float64) * torch.logspace(-1, 1, N).double()[:, None, None]
    with run_of(model, (x, Y), steps=len(lengths), engine=engine) as run:
        for t, batch in zip(lengths, run.batches(), strict=True):
            for inputs, labels in batch.microbatches(9):
                run.accumulate(cross_entropy, inputs[:, :t], labels)
            run.optimizer.step()
            found = torch.cat([p.grad.flatten() for p in model.parameters()])
            assert_exact(found, model, cross_entropy, x[:, :t], Y)


class SignBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0].sign()


def between(between: Callable[[Tensor], Tensor] = lambda h: h, hook: Any = None) -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        hidden = between(m.first(x).tanh())
        if hook is not None:
            hidden.register_hook(hook)
        return m.last(hidden)

    return Forward(forward, first=nn.Linear(6, 7), last=nn.Linear(7, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "sign in a hook": lambda: between(hook=torch.sign),
    "rows clipped in a hook": lambda: between(hook=lambda g: g / g.norm(dim=1, keepdim=True).clamp(min=1e-3)),
    "constant added in a hook": lambda: between(hook=lambda g: g + 0.5),
    "function": lambda: between(SignBackward.apply),
}


@one_by_one  # vmap takes no hooks of tensors
@by_engine
@pytest.mark.parametrize("net", NETS)
def test_sums_of_a_backward_pass_that_is_not_linear(net: str, engine: Any) -> None:
    torch.manual_seed(0)
    model = NETS[net]().double()
    for scale in (1e-3, 1.0, 1e3):

        def loss(model: nn.Module, x: Tensor, y: Tensor, scale: float = scale) -> Tensor:
            return cross_entropy(model, x, y) * scale

        clip = PerExampleClip(model, C, engine=engine, capture="eager")
        try:
            clip.accumulate(loss, X[:6], Y[:6])
        except PrivacyError:
            assert isinstance(engine, engines.Vmap)  # torch.func cannot take it; refused in words
            return
        assert_exact(torch.cat([g.double().flatten() for g in clip.pop_sums()[0].grads]), model, loss, X[:6], Y[:6])
