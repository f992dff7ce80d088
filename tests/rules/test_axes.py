"""Models may move the batch axis wherever they like, as time-first layers do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine_check import check_thoroughly, measured
from model_cases import Case, Forward, floats, ids, parameter, squares
from noisette.clipping.engines import BookKeeping
from oracle import clipped_sum

T = 14  # a multiple of every batch size that is tested, so that no shape tells the axes apart


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


def test_bad_example_does_not_hide_the_others() -> None:
    model, x = time_first().double(), torch.randn(7, T, 5, dtype=torch.float64)
    _, expected = measured(model, squares, (x[1:],), 0.5, BookKeeping())
    x[0] = float("nan")
    _, sums = measured(model, squares, (x,), 0.5, BookKeeping())
    for name, g in expected.items():
        torch.testing.assert_close(sums[name], g)
