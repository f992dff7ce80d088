"""Where a model sorts, permutes or picks its examples, no record misplaces another, whatever its own gradient is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from model_cases import Forward
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, TwoPass, TwoPasses
from noisette.core.clip import Engine
from noisette.gradients import batch_axis
from oracle import clipped_sum

B, T, C = 6, 5, 0.5
FORGED = [1e8, 1e-8, 1e20, 1e-20, 0.0, math.nan, math.inf]


def squares(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Each example's loss, times the number that comes with it as its last input."""
    *own, weight = inputs
    out = model(*own)
    return (out.square().flatten(1).sum(1) + out.flatten(1).sum(1)) * weight


def private_sum(clip: PerExampleClip, *inputs: Tensor) -> Tensor:
    clip.backward(squares(clip.model, *inputs))
    [found] = clip.pop_sums()
    return torch.cat([g.flatten() for g in found.grads])


def packed(cell: Callable[..., nn.Module]) -> nn.Module:
    """Packed by length, with layers before and after that see the examples in the order they came."""

    def forward(m: Forward, x: Tensor, lengths: Tensor) -> Tensor:
        together = pack_padded_sequence(m.up(x), lengths, batch_first=True, enforce_sorted=False)
        output, last = m.rnn(together)
        padded, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return m.down(padded).sum(1) + (last[0] if isinstance(last, tuple) else last)[-1][:, :3]

    return Forward(forward, up=nn.Linear(4, 5), rnn=cell(5, 6, batch_first=True), down=nn.Linear(6, 3))


def layers(arrange: Callable[[Forward, Tensor], tuple[Tensor, Callable[[Tensor], Tensor]]]) -> Callable[[], nn.Module]:
    """Examples (b, features) arranged in another way, worked on, and put back."""

    def forward(m: Forward, x: Tensor, lengths: Tensor) -> Tensor:
        arranged, back = arrange(m, m.up(x[:, 0]))
        return m.down(back(torch.tanh(m.middle(arranged)))) + m.beside(x[:, 1])

    return lambda: Forward(forward, up=nn.Linear(4, 5), score=nn.Linear(5, 1), middle=nn.Linear(5, 6),
                           down=nn.Linear(6, 3), beside=nn.Linear(4, 3))  # fmt: skip


def by_learned_score(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    score = m.score(h)
    order = score.squeeze(1).argsort()
    return (h * score.sigmoid())[order], lambda y: y[order.argsort()]


def by_index_select(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    order = h[:, 0].detach().sort().indices
    return h.index_select(0, order), lambda y: torch.empty_like(y).index_copy(0, order, y)


def at_random(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    order = torch.randperm(len(h))
    return h[order], lambda y: y[order.argsort()]


def at_random_by_gather(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    order = torch.randperm(len(h))
    return (h.gather(0, order[:, None].expand_as(h)),
            lambda y: y.gather(0, order.argsort()[:, None].expand_as(y)))  # fmt: skip


def shuffled_list(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    order = random.sample(range(len(h)), len(h))
    rows = h.unbind(0)
    return (torch.stack([rows[k] for k in order]),
            lambda y: torch.stack([y[order.index(k)] for k in range(len(order))]))  # fmt: skip


def rolled_by_a_random_shift(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    shift = random.randrange(len(h))
    return h.roll(shift, 0), lambda y: torch.cat([y[shift:], y[:shift]])


def flipped(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    return h.flip(0), lambda y: y.flip(0)


def beams(m: Forward, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Three beams to an example, and the examples' groups of beams in another order."""
    order = torch.randperm(len(h))
    rows = (3 * order[:, None] + torch.arange(3)).flatten()
    wide = torch.cat([h.unsqueeze(1), 0.5 * h.unsqueeze(1), h.unsqueeze(1).square()], 1).flatten(0, 1)
    return wide.index_select(0, rows), lambda y: y.view(len(order), 3, -1).sum(1)[order.argsort()]


MODELS = {
    "packed GRU": lambda: packed(nn.GRU),
    "packed LSTM": lambda: packed(nn.LSTM),
    **{f.__name__.replace("_", " "): layers(f) for f in (
        by_learned_score, by_index_select, at_random, at_random_by_gather, shuffled_list, rolled_by_a_random_shift,
        flipped, beams)},
}  # fmt: skip


def batch(b: int = B, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(b, T, 4, dtype=dtype), torch.randint(1, T + 1, (b,)), torch.ones(b, dtype=dtype)


@pytest.mark.parametrize("engine", [BookKeeping(), TwoPass(), TwoPasses()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_forged_gradients_leave_the_others_where_they_are(name: str, engine: Engine) -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = MODELS[name]().double()
    clip = PerExampleClip(model, C, engine=engine)
    for value in FORGED:
        x, lengths, weight = batch()
        weight[2] = value
        found = private_sum(clip, x, lengths, weight)
        kept = torch.arange(B) != 2 if not math.isfinite(value) else slice(None)
        truth = clipped_sum(model, squares, (x[kept], lengths[kept], weight[kept]), C)
        torch.testing.assert_close(found, truth.vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("value", [1e8, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", MODELS)
def test_forged_inputs_move_the_sum_by_one_bound(name: str, value: float) -> None:
    """Beside examples without a gradient, whose places nothing shows."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    clip = PerExampleClip(model, C)
    for seed in range(3):
        x, lengths, weight = batch()
        weight[4:] = 0
        x[1] = value
        random.seed(seed)
        found = private_sum(clip, x, lengths, weight)
        kept = torch.arange(B) != 1
        truth = clipped_sum(model, squares, (x[kept], lengths[kept], weight[kept]), C)
        assert found.isfinite().all()
        assert (found - truth.vector).norm() <= C * (1 + 1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_harmless_batches_of_several_sizes_train_exactly(name: str) -> None:
    torch.manual_seed(1)
    random.seed(1)
    model = MODELS[name]().double()
    clip = PerExampleClip(model, C)
    for b in (4, 19, 5, 1, 40, 5, 5):
        inputs = batch(b)
        truth = clipped_sum(model, squares, inputs, C)
        torch.testing.assert_close(private_sum(clip, *inputs), truth.vector, rtol=1e-9, atol=1e-12)


def test_float32_places_every_record_of_a_large_range() -> None:
    torch.manual_seed(2)
    model = MODELS["packed GRU"]()
    x, lengths, weight = batch(32, dtype=torch.float32)
    weight = torch.logspace(-15, 15, 32)
    found = private_sum(PerExampleClip(model, C), x, lengths, weight)
    truth = clipped_sum(model, squares, (x, lengths, weight), C)
    torch.testing.assert_close(found.double(), truth.vector, rtol=1e-4, atol=1e-5)


def train_on(clip: PerExampleClip, *, steps: int) -> None:
    for _ in range(steps):
        private_sum(clip, *batch())


def mixes_later(share: float) -> nn.Module:
    def forward(m: Forward, x: Tensor, lengths: Tensor) -> Tensor:
        h = m.up(x[:, 0])
        return m.down(torch.tanh(h + share * m.late * h.mean(0)))

    model = Forward(forward, up=nn.Linear(4, 5), down=nn.Linear(5, 3))
    model.late = 0.0
    return model


@pytest.mark.parametrize("share", [1.0, 1e-2])
def test_mixing_that_comes_later_is_seen_when_places_are_measured_anew(share: float) -> None:
    model = mixes_later(share).double()
    clip = PerExampleClip(model, C)
    private_sum(clip, *batch())
    model.late = 1.0
    with pytest.raises(PrivacyError, match="examples mix in the model, and did not in earlier batches"):
        train_on(clip, steps=batch_axis._MOST_REUSED)


def test_mixing_that_comes_with_a_larger_batch_is_seen_at_once() -> None:
    model = mixes_later(1.0).double()
    clip = PerExampleClip(model, C)
    private_sum(clip, *batch())
    model.late = 1.0
    with pytest.raises(PrivacyError, match="examples mix in the model, and did not in earlier batches"):
        private_sum(clip, *batch(2 * B + 1))


def test_places_are_kept_between_measurements() -> None:
    """A model that moves nothing by values is measured once in a while."""
    model, measured = mixes_later(0.0).double(), 0
    whole = batch_axis._measure

    def counted(*args: object) -> object:
        nonlocal measured
        measured += 1
        return whole(*args)

    with patch.object(batch_axis, "_measure", counted):
        clip = PerExampleClip(model, C)
        for _ in range(2 * batch_axis._FEWEST_REUSED):
            private_sum(clip, *batch())
    assert 1 <= measured <= 3
