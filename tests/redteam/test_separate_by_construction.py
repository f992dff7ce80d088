"""Couplings of examples in loss and model that per-example losses cannot have: a record moves a sum by C at most."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import noisette
from noisette.errors import PrivacyError

F = nn.functional
C, N = 1.0, 24
MOST = 1 + 2.0**-13  # of the bound, for rounding
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(5))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(6))
FORGED = [X[:1], X[:1] * 1e8, X[:1] * 1e-8, torch.full((1, 6), torch.nan), torch.full((1, 6), torch.inf), -X[:1] * 50]

Loss = Callable[..., Tensor]


def released(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, microbatch: int = 7) -> Tensor:
    """What one step of the public loop releases, with hardly any noise, times the divisor."""
    torch.manual_seed(0)
    model.zero_grad()
    clip = noisette.PerExampleClip(model, C)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with noisette.privatize(
        clip, optimizer, (x, y), sampling_rate=1.0, expected_batch_size=1, steps=1, noise_multiplier=1e-6
    ) as run:
        for batch in run.batches():
            for xs, ys in batch.microbatches(microbatch):
                run.accumulate(loss, xs, ys)
            optimizer.step()
        return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def by_hand(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """The clipped sum of a loop over single examples."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(x)):
        model.zero_grad()
        loss(model, x[i : i + 1], y[i : i + 1]).sum().backward()
        flat = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
        total += flat * min(1.0, C / max(float(flat.norm()), 1e-30)) if flat.isfinite().all() else 0
    return total


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def hard_examples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses * (losses > losses.detach().mean() - 1e-6)).sum()


def over_the_largest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses / losses.detach().max()).sum()


def class_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    counts = F.one_hot(y, 3).sum(0)
    return F.cross_entropy(model(x), y, weight=1.0 / (1 + counts))


def over_the_size(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none").sum() / len(y)


def with_a_baseline(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    log_p = model(x).log_softmax(1)
    reward = (x.sum(1) > 0).float()
    return -((reward - reward.mean() + 0.5) * log_p.gather(1, y.unsqueeze(1)).squeeze(1)).sum()


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.t() + model(x)[:, :1], torch.arange(len(x)))


def standardised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x - x.mean(0) + 0.1 * x), y)


def mixed_up(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(0.5 * x + 0.5 * x.flip(0)), y)


def half(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y, reduction="none")
    return 0.5 * (losses * losses.detach().sum())


LOSSES = [
    hard_examples, over_the_largest, class_weights, over_the_size, with_a_baseline, contrastive, standardised, mixed_up,
    half,
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_coupled_loss_is_that_of_each_example_alone(loss: Loss) -> None:
    model = network()
    torch.testing.assert_close(released(model, loss, X, Y), by_hand(model, loss, X, Y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_record_moves_a_coupled_loss_by_no_more_than_the_bound(loss: Loss) -> None:
    model = network()
    without = released(model, loss, X[1:], Y[1:])
    for record in FORGED:
        with_it = released(model, loss, torch.cat([record, X[1:]]), Y)
        assert float((with_it - without).norm()) <= C * MOST


def masked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(model(x), y, reduction="none") * (y > 0)).sum()


def of_great_range(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) * torch.pow(10.0, 12 * (x[0, 0] - x[0, 1]).sign())


def with_padded_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x.unsqueeze(1).repeat(1, 3, 1) * torch.tensor([1.0, 0.5, 2.0])[:, None])
    labels = torch.stack([y, torch.where(y > 1, y, -100), torch.full_like(y, -100)], 1)
    return F.cross_entropy(out.transpose(1, 2), labels, reduction="sum") / (labels >= 0).sum()


def of_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(torch.cat([x, 0.5 * x, x.flip(1)])), y.repeat(3))


def of_ctc(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """With time first, as the loss wants it."""
    steps = x.unsqueeze(1) * torch.linspace(0.5, 1.5, 7)[:, None]
    out = model(steps).transpose(0, 1).log_softmax(2)
    lengths = torch.tensor([7]), torch.tensor([2])
    return F.ctc_loss(out, (1 + y % 2)[:, None].repeat(1, 2), *lengths, reduction="sum", zero_infinity=True)


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize(
    "loss", [masked, of_great_range, with_padded_tokens, of_views, of_ctc], ids=lambda loss: loss.__name__
)
def test_what_people_do_is_exact(loss: Loss) -> None:
    model = network()
    torch.testing.assert_close(released(model, loss, X, Y), by_hand(model, loss, X, Y), rtol=1e-4, atol=1e-4)


class Centring(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.9 * x.mean(0)


class BatchAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.t(), 1) @ x + x


class Sorted(nn.Module):
    """Sorts the batch by a score and never undoes it."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x.sum(1).argsort()]


class Ramp(nn.Module):
    """Couples more in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.amount += 0.5
        return x - min(self.amount, 1.0) * x.mean(0) + 0.3 * x


class LargeOnly(nn.Module):
    """Couples above a size that no check tries."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 3 else x


class PackedGru(nn.Module):
    """A recurrence over sequences that are permuted by a score, which one forged record could move."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        order = x.norm(dim=1).argsort()
        return self.gru(x[order].unsqueeze(2))[0][:, -1][order.argsort()]


@pytest.mark.parametrize("part", [Centring, BatchAttention, Sorted, Ramp, LargeOnly, PackedGru])
def test_a_record_moves_a_coupled_model_by_no_more_than_the_bound(part: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def made() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(part(), nn.Linear(6, 3))

    without = released(made(), loss, X[1:], Y[1:], microbatch=N)
    for record in FORGED:
        with_it = released(made(), loss, torch.cat([record, X[1:]]), Y, microbatch=N)
        assert float((with_it - without).norm()) <= C * MOST


def test_a_tensor_of_the_batch_is_no_way_around_the_arguments() -> None:
    model = network()
    clip = noisette.PerExampleClip(model, C)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with noisette.privatize(
        clip, optimizer, (X, Y), sampling_rate=1.0, expected_batch_size=N, steps=3, noise_multiplier=1.0
    ) as run:
        batch = next(iter(run.batches()))
        x, y = next(batch.microbatches(N))
        weights = 1.0 / F.one_hot(y, 3).sum(0)
        with pytest.raises(PrivacyError, match="neither an argument nor part of the model"):
            run.accumulate(lambda model, x, y: F.cross_entropy(model(x), y, weight=weights), x, y)
        with pytest.raises(PrivacyError, match="neither an argument nor part of the model"):
            run.accumulate(lambda model, a, b: F.cross_entropy(model(a), b) / y.sum(), x, y)
        with pytest.raises(PrivacyError, match="neither an argument nor part of the model"):
            run.accumulate(lambda model, a, b: F.mse_loss(model(a)[:, 0], x.mean(1)[:1]), x, y)
        run.accumulate(lambda model, x, y: F.cross_entropy(model(x), y, weight=weights), x, y, public=[weights])


def test_a_constant_table_that_was_there_before_is_used() -> None:
    model, table = network(), torch.tensor([1.0, 2.0, 0.5])

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, weight=table, reduction="sum")

    torch.testing.assert_close(released(model, loss, X, Y), by_hand(model, loss, X, Y), rtol=1e-4, atol=1e-4)


TEXTS = [f"text {k}" for k in range(N)]


def of_texts(model: nn.Module, x: Tensor, y: Tensor, texts: list[str]) -> Tensor:
    return F.cross_entropy(model(x), y) * len(texts[-1])


def test_texts_of_a_batch_are_refused_where_they_are_read() -> None:
    clip = noisette.PerExampleClip(network(), C)
    with pytest.raises(PrivacyError, match=r"entries of several examples, such as str 'text 0'.*microbatches\(1\)"):
        clip.accumulate(of_texts, X, Y, TEXTS)
    clip.accumulate(lambda model, x, y, texts: F.cross_entropy(model(x), y), X, Y, TEXTS)  # nobody reads them
    [found] = clip.pop_sums()
    total = torch.cat([g.double().flatten() for g in found.grads])
    plain = by_hand(network(), lambda model, x, y: F.cross_entropy(model(x), y), X, Y)
    torch.testing.assert_close(total, plain, rtol=1e-4, atol=1e-4)


def test_one_example_at_a_time_is_the_remedy_for_texts() -> None:
    clip = noisette.PerExampleClip(network(), C)
    for k in range(N):
        clip.accumulate(of_texts, X[k : k + 1], Y[k : k + 1], TEXTS[k : k + 1])
    [found] = clip.pop_sums()
    total = torch.cat([g.double().flatten() for g in found.grads])
    lengths = {tuple(x.tolist()): len(text) for x, text in zip(X, TEXTS, strict=True)}
    expected = by_hand(network(), lambda m, x, y: F.cross_entropy(m(x), y) * lengths[tuple(x[0].tolist())], X, Y)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
