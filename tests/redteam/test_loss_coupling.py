"""Losses that look at other examples through the model's outputs are refused in every batch; harmless ones train."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import PerExampleClip, PrivacyError
from noisette.nn.lipschitz import BoundedInput, SpectralLinear, TauCrossEntropy
from oracle import clipped_sum

B, CLASSES, C = 6, 4, 0.5


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def batch(b: int = B) -> tuple[Tensor, Tensor]:
    return torch.randn(b, 5, dtype=torch.float64), torch.randint(0, CLASSES, (b,))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def total(clip: PerExampleClip) -> Tensor:
    [found] = clip.pop_sums()
    return torch.cat([g.flatten() for g in found.grads])


def centred(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return 0.5 * (each - each.mean())


def slightly_mixed(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return 0.5 * ((1 - 1e-4) * each + 1e-4 * each.sum())


def contrastive(out: Tensor, y: Tensor) -> Tensor:
    return 0.5 * F.cross_entropy(out @ out.t(), torch.arange(len(out)), reduction="none")


def in_batch_softmax(out: Tensor, y: Tensor) -> Tensor:
    return 0.5 * -out.log_softmax(0).gather(1, y.unsqueeze(1)).squeeze(1)


def sorted_losses(out: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (out.sum(1).sort().values - torch.arange(len(out))).square()


def hardest_half(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return 0.5 * (each + each.topk(len(out) // 2).values.sum())


def another_behind_a_large_row(out: Tensor, y: Tensor) -> Tensor:
    """One huge row, and a small one that another example's loss sees."""
    each = F.cross_entropy(out, y, reduction="none")
    factor = torch.ones(len(out), dtype=out.dtype)
    factor[0] = 1e8
    return 0.5 * (each * factor + each.roll(1) * (torch.arange(len(out)) == 3))


def masked_example_seen_by_another(out: Tensor, y: Tensor) -> Tensor:
    """The first example's own gradient is zero, and the second one's loss depends on it."""
    each = F.cross_entropy(out, y, reduction="none")
    here = torch.arange(len(out))
    return 0.5 * (each * (here != 0) + each[0] * (here == 1))


COUPLED = [centred, slightly_mixed, contrastive, in_batch_softmax, sorted_losses, hardest_half,
           another_behind_a_large_row, masked_example_seen_by_another]  # fmt: skip


def run_of(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> noisette.PrivateRun:
    return noisette.privatize(
        PerExampleClip(model, C), torch.optim.SGD(model.parameters(), lr=0.1), (x, y), sampling_rate=1.0,
        expected_batch_size=len(x), steps=steps, noise_multiplier=1.0, accountant=noisette.RdpAccountant(),
        separability="asserted",
    )  # fmt: skip


@pytest.mark.parametrize("loss", COUPLED, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("warm_up", [0, 2])
def test_coupled_losses_are_refused_in_whichever_batch_they_come(
    loss: Callable[[Tensor, Tensor], Tensor], warm_up: int
) -> None:
    """Each ends in ``0.5 * ...``, as an innocent loss of the steps before does."""
    model = mlp()
    with run_of(model, *batch(), steps=warm_up + 1) as run:
        for step, drawn in enumerate(run.batches()):
            for x, y in drawn.microbatches(B):
                if step < warm_up:
                    run.backward(0.5 * cross_entropy(model, x, y))
                else:
                    with pytest.raises(PrivacyError, match="depends on the output of another example"):
                        run.backward(loss(model(x), y))
                    return
            run.optimizer.step()
            run.optimizer.zero_grad()


def test_a_batch_of_two_is_enough() -> None:
    for _ in range(20):
        model, (x, y) = mlp(), batch(2)
        with pytest.raises(PrivacyError, match="another example"):
            PerExampleClip(model, C).backward(slightly_mixed(model(x), y))


def test_mixing_behind_outputs_with_time_first_is_refused() -> None:
    model = Transposed()
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    clip = PerExampleClip(model, C)
    out = model(x)
    with pytest.raises(PrivacyError, match="another example"):
        clip.backward((out - 1e-3 * out.mean(1, keepdim=True)).square().sum((0, 2)))


def test_output_without_an_axis_of_examples_is_refused() -> None:
    model = mlp()
    returns_mean = WithMean(model)
    x, y = batch()
    clip = PerExampleClip(returns_mean, C)
    out, mean = returns_mean(x)
    with pytest.raises(PrivacyError, match="another example"):
        clip.backward(F.cross_entropy(out, y, reduction="none") + mean)


def test_clipless_losses_are_checked_in_every_batch() -> None:
    model = nn.Sequential(BoundedInput(2.0), SpectralLinear(5, CLASSES)).double()
    bound = noisette.LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=(5,))
    x, y = batch()
    for _ in range(2):
        bound.backward(0.1 * cross_entropy(model, x, y))
    with pytest.raises(PrivacyError, match="another example"):
        bound.backward(0.1 * centred(model(x), y))


class WithMean(nn.Module):
    """Returns the mean of its outputs too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.inner(x)
        return out, out.mean()


class Transposed(nn.Module):
    """(example, time, feature) to (time, example, class)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, CLASSES, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).transpose(0, 1)


def masked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * (y > 0)


def of_great_range(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * torch.pow(10.0, 20 * (x[:, 0] - x[:, 1]).sign()).double()


def with_padded_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x.unsqueeze(1).repeat(1, 3, 1) * torch.tensor([1.0, 0.5, 2.0], dtype=x.dtype)[:, None])
    labels = torch.stack([y, torch.where(y > 1, y, -100), torch.full_like(y, -100)], 1)
    return F.cross_entropy(out.transpose(1, 2), labels, reduction="none").sum(1) / (labels >= 0).sum(1)


def repeated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    views = torch.cat([x, 0.5 * x, x.flip(1)])
    return F.cross_entropy(model(views), y.repeat(3), reduction="none").view(3, -1).mean(0)


def repeated_one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    views = x.repeat_interleave(3, 0) * torch.tensor([1.0, 0.5, 2.0], dtype=x.dtype).repeat(len(x)).unsqueeze(1)
    return F.cross_entropy(model(views), y.repeat_interleave(3), reduction="none").view(-1, 3).mean(1)


def saturated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(1e3 * model(x), y, reduction="none")


@pytest.mark.parametrize(
    "loss", [cross_entropy, masked, of_great_range, with_padded_tokens, repeated, repeated_one_by_one, saturated],
    ids=lambda loss: loss.__name__,
)  # fmt: skip
def test_harmless_losses_train_exactly(loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
    model = mlp()
    clip = PerExampleClip(model, C)
    for b in (2, B, 17, 1):
        x, y = batch(b)
        clip.backward(loss(model, x, y))
        truth = clipped_sum(model, loss, (x, y), C)
        torch.testing.assert_close(total(clip), truth.vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_stops_no_other(bad: float) -> None:
    model, (x, y) = mlp(), batch()
    clip = PerExampleClip(model, C)
    x[2] = bad
    clip.backward(cross_entropy(model, x, y))
    kept = [0, 1, 3, 4, 5]
    truth = clipped_sum(model, cross_entropy, (x[kept], y[kept]), C)
    torch.testing.assert_close(total(clip), truth.vector, rtol=1e-9, atol=1e-12)


def test_ctc_on_outputs_with_time_first() -> None:
    model, x = Transposed(), torch.randn(B, 7, 5, dtype=torch.float64)
    y = torch.randint(1, CLASSES, (B, 3))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 7), torch.full((len(x),), 3)
        return F.ctc_loss(model(x).log_softmax(2), y, *lengths, reduction="none", zero_infinity=True)

    clip = PerExampleClip(model, C)
    clip.backward(loss(model, x, y))
    torch.testing.assert_close(total(clip), clipped_sum(model, loss, (x, y), C).vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("b", [2, 64])
def test_losses_under_autocast_are_accepted(b: int) -> None:
    model, (x, y) = mlp().float(), batch(b)
    clip = PerExampleClip(model, C)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            losses = F.cross_entropy(model(x.float()), y, reduction="none")
        clip.backward(losses)
    assert total(clip).isfinite().all()


def test_the_check_leaves_torchs_generator_alone() -> None:
    model, (x, y) = mlp(), batch()
    clip = PerExampleClip(model, C)
    losses = cross_entropy(model, x, y)
    before = torch.get_rng_state()
    clip.backward(losses)
    assert torch.equal(before, torch.get_rng_state())
