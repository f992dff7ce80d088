"""Models may keep their examples on any axis: where they are is measured, never guessed from shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from engine_check import check, check_thoroughly, measured
from model_cases import Case, Forward, Inputs, floats, ids, parameter, squares
from noisette import MissingRuleError, PerExampleClip
from noisette.clipping.engines import BookKeeping, TwoPass, TwoPasses
from noisette.gradients.batch_axis import secret_order
from oracle import clipped_sum

T = 14  # a multiple of every batch size that is tested, where only a measurement helps


def time_first() -> nn.Module:
    """Linear, norm, positions and a scale on (time, example, feature)."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        h = m.norm(m.up(x.transpose(0, 1)) + m.positions) * m.scale
        return m.down(torch.tanh(h)).transpose(0, 1)

    return Forward(
        forward,
        up=nn.Linear(5, 6),
        norm=nn.LayerNorm(6),
        positions=parameter(T, 1, 6),
        scale=parameter(6),
        down=nn.Linear(6, 3),
    )


def folded_inside() -> nn.Module:
    """(time, example, feature) folded to (time times example, feature)."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        h = torch.tanh(m.up(x.transpose(0, 1).reshape(-1, 5)))
        return (m.down(h) * m.scale).view(x.shape[1], x.shape[0], 3).transpose(0, 1)

    return Forward(forward, up=nn.Linear(5, 6), down=nn.Linear(6, 3), scale=parameter(3))


def words_time_first() -> nn.Module:
    return Forward(lambda m, x: m.out(m.table(x.t())).transpose(0, 1), table=nn.Embedding(11, 5), out=nn.Linear(5, 3))


CASES = [
    Case("time first", time_first, floats(T, 5)),
    Case("examples folded inside positions", folded_inside, floats(T, 5)),
    Case("examples folded outside positions", lambda: Forward(
        lambda m, x: m.up(x.reshape(-1, 5)).view(x.shape[0], -1), up=nn.Linear(5, 6)), floats(T, 5)),
    Case("words, time first", words_time_first, ids(T)),
    Case("examples on the last axis but one", lambda: Forward(
        lambda m, x: m.up(x.permute(1, 2, 0, 3)).permute(2, 0, 1, 3), up=nn.Linear(5, 6)), floats(2, T, 5)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_clipped_sum_is_the_oracles(case: Case) -> None:
    check_thoroughly(case)


def test_axis_of_the_same_length_is_not_mistaken_for_the_examples() -> None:
    model, x = time_first().double(), torch.randn(T, T, 5, dtype=torch.float64)
    truth = clipped_sum(model, squares, (x,), 0.5)
    norms, _ = measured(model, squares, (x,), 0.5, BookKeeping())
    torch.testing.assert_close(norms, truth.norms, rtol=1e-10, atol=0)


def backward_passes(clip: PerExampleClip, losses: Tensor) -> int:
    """How many times autograd runs in one private backward, but for the two short passes that check the losses."""
    count, grad = 0, torch.autograd.grad

    def counted(*args, **options):
        nonlocal count
        count += 1
        return grad(*args, **options)

    torch.autograd.grad = counted
    try:
        clip.backward(losses)
    finally:
        torch.autograd.grad = grad
    return count - 2


def test_structure_is_measured_once() -> None:
    model = time_first()
    clip = PerExampleClip(model, 1.0)
    passes = [backward_passes(clip, squares(model, torch.randn(8 + step, T, 5))) for step in range(3)]
    clip.close()
    assert passes[0] > passes[1] == passes[2] == 1


def two_heads() -> nn.Module:
    """What the second head makes is returned beside the output of the first."""
    return Forward(lambda m, x: (m.first(x), m.second(x)), first=nn.Linear(5, 3), second=nn.Linear(5, 3))


def test_use_that_no_loss_reaches_is_not_measured_again() -> None:
    model = two_heads()
    clip = PerExampleClip(model, 1.0)
    passes = [backward_passes(clip, model(torch.randn(6, 5))[0].square().sum(1)) for _ in range(3)]
    clip.close()
    assert passes[0] > passes[1] == passes[2] == 1


def test_use_that_a_later_loss_reaches_is_measured_then() -> None:
    """The second head has time first, so that nobody can guess where its examples are."""
    model = Forward(lambda m, x: (m.first(x), m.second(x.t()[:, :, None]).transpose(0, 1)),
                    first=nn.Linear(5, 3), second=nn.Linear(1, 3)).double()  # fmt: skip
    x = torch.randn(5, 5, dtype=torch.float64)

    def of_one(m: nn.Module, x: Tensor) -> Tensor:
        first, _ = m(x)
        return first.square().sum(1) + first.sin().sum(1)

    def of_both(m: nn.Module, x: Tensor) -> Tensor:
        first, second = m(x)
        return first.square().sum(1) + second.sin().sum((1, 2))

    clip = PerExampleClip(model, 0.5)
    backward_passes(clip, of_one(model, x))
    clip.pop_sums()
    passes = [backward_passes(clip, of_both(model, x))]
    [total] = clip.pop_sums()
    passes += [backward_passes(clip, loss(model, x)) for loss in (of_both, of_one, of_both)]
    clip.close()
    assert passes == [3, 1, 1, 1]
    truth = clipped_sum(model, of_both, (x,), 0.5)
    torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), truth.vector, rtol=1e-10, atol=1e-12)


def test_use_without_gradient_costs_one_pass_over_itself_until_it_has_one() -> None:
    """A gate that is shut lets no gradient through; one that opens shows the place, which is kept then."""
    model = Forward(lambda m, x: m.down(m.up(x.transpose(0, 1)) * m.gate + x.transpose(0, 1)).transpose(0, 1),
                    up=nn.Linear(5, 5), down=nn.Linear(5, 3)).double()  # fmt: skip
    clip = PerExampleClip(model, 0.5)
    passes, x = [], torch.randn(T, T, 5, dtype=torch.float64)
    for model.gate in (0, 0, 1, 1):
        passes.append(backward_passes(clip, squares(model, x)))
        [total] = clip.pop_sums()
        truth = clipped_sum(model, squares, (x,), 0.5)
        torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), truth.vector, rtol=1e-10, atol=1e-12)
    clip.close()
    assert passes[1:] == [2, 3, 1]


def test_output_that_belongs_to_no_example_is_refused() -> None:
    """Positions computed without the examples have gradients that are summed over them."""
    model = Forward(lambda m, x: x + F.linear(x.new_ones(x.shape[1], 5), m.w), w=parameter(5, 5))
    x = torch.randn(7, T, 5)
    clip = PerExampleClip(model, 1.0)
    with pytest.raises(MissingRuleError, match="no axis of its output holds the examples"):
        clip.backward(squares(model, x))
    clip.close()


def test_bad_example_does_not_hide_the_others() -> None:
    model, x = time_first().double(), torch.randn(7, T, 5, dtype=torch.float64)
    _, expected = measured(model, squares, (x[1:],), 0.5, BookKeeping())
    x[0] = float("nan")
    _, sums = measured(model, squares, (x,), 0.5, BookKeeping())
    for name, g in expected.items():
        torch.testing.assert_close(sums[name], g)


def test_examples_without_gradient_leave_the_question_open() -> None:
    """The first batch tells nothing where only one example has a gradient; a later one does."""
    model = time_first().double()
    clip = PerExampleClip(model, 0.5)
    x, y = (torch.randn(T, T, 5, dtype=torch.float64) for _ in range(2))
    alone = torch.zeros(T, dtype=torch.float64)
    alone[2] = 1
    clip.backward(squares(model, x) * alone)
    clip.pop_sums()
    clip.backward(squares(model, y))
    [total] = clip.pop_sums()
    clip.close()
    truth = clipped_sum(model, squares, (y,), 0.5)
    found = torch.cat([g.flatten() for g in total.grads])
    torch.testing.assert_close(found, truth.vector, rtol=1e-10, atol=1e-12)


def packed_by_length() -> nn.Module:
    """Packing sorts the examples by length, and other layers see them in the order they came."""

    def forward(m: Forward, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(m.up(x), lengths, batch_first=True, enforce_sorted=False)
        output, (last, _) = m.rnn(packed)
        padded, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return m.down(padded).sum(1) + last[-1][:, :3]

    return Forward(forward, up=nn.Linear(4, 5), rnn=nn.LSTM(5, 6, batch_first=True), down=nn.Linear(6, 3))


def of_lengths(b: int) -> Inputs:
    return torch.randn(b, 7, 4), torch.randint(1, 8, (b,))


def test_packing_by_length_changes_the_order() -> None:
    case = Case("packed by length", packed_by_length, of_lengths)
    for b in (7, 1, 2):
        check(case, BookKeeping(), TwoPass(), TwoPasses(), b=b, dtype=torch.float64)
    check(case, BookKeeping(), TwoPass(), TwoPasses(), b=6, dtype=torch.float32)


def test_order_of_one_batch_is_not_that_of_the_next() -> None:
    model, x = packed_by_length().double(), torch.randn(4, 7, 4, dtype=torch.float64)
    clip = PerExampleClip(model, 0.5)
    for lengths in ([7, 5, 4, 2], [2, 7, 4, 5], [1, 1, 7, 7]):
        clip.backward(squares(model, x, torch.tensor(lengths)))
        [total] = clip.pop_sums()
        truth = clipped_sum(model, squares, (x, torch.tensor(lengths)), 0.5)
        found = torch.cat([g.flatten() for g in total.grads])
        torch.testing.assert_close(found, truth.vector, rtol=1e-9, atol=1e-12)
    clip.close()


def test_batch_that_is_sorted_by_chance_is_not_taken_for_the_rule() -> None:
    """Sorted by a value, worked on, and put back."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return m.down(torch.tanh(m.up(x[order]))[order.argsort()])

    model = Forward(forward, up=nn.Linear(5, 6), down=nn.Linear(6, 3)).double()
    clip = PerExampleClip(model, 0.5)
    x = torch.randn(6, 5, dtype=torch.float64)
    for batch in (x[x[:, 0].argsort()], x, x.flip(0)):
        clip.backward(squares(model, batch))
        [total] = clip.pop_sums()
        truth = clipped_sum(model, squares, (batch,), 0.5)
        torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), truth.vector, rtol=1e-9, atol=1e-12)
    clip.close()


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_packed_example_that_says_nothing_of_its_place(value: float) -> None:
    model, x = packed_by_length().double(), torch.randn(4, 7, 4, dtype=torch.float64)
    lengths, weight = torch.tensor([2, 7, 4, 5]), torch.ones(4, dtype=torch.float64)
    weight[1] = value
    clip = PerExampleClip(model, 0.5)
    clip.backward(squares(model, x, lengths) * weight)
    [total] = clip.pop_sums()
    clip.close()
    kept = [0, 2, 3]
    truth = clipped_sum(model, squares, (x[kept], lengths[kept]), 0.5)
    found = torch.cat([g.flatten() for g in total.grads])
    torch.testing.assert_close(found, truth.vector, rtol=1e-9, atol=1e-12)


def test_secret_order_is_a_permutation_and_leaves_torchs_generator() -> None:
    before = torch.get_rng_state()
    one, other = secret_order(64), secret_order(64)
    assert one.sort().values.tolist() == list(range(64))
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())
