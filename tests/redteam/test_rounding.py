"""Sums of neighbouring batches differ by at most the bound and an allowance for rounding, which the noise has too."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, engines
from noisette.clipping.rules import AdaptiveClip, FlatClipping
from noisette.core.forms import Dense, Outer, gram_product
from noisette.core.noise import SecretKey
from noisette.core.release import ROUNDING, BoundedSum, GaussianRelease
from small_loop import clipped_by

MOST = 1 + 2.0**-13  # of the bound: the noise is that of a sensitivity so much larger
ENGINES = [engines.BookKeeping(), engines.ReweightGP(), engines.PerExampleLoop(), engines.Vmap()]
by_name = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)


def clipped_sum(model: nn.Module, x: Tensor, scale: Tensor, bound: float, engine: Any) -> Tensor:
    loss = lambda model, x, scale: model(x).sum() * scale.sum()  # noqa: E731
    return clipped_by(model, bound, loss, (x, scale), engine=engine, capture="eager")


def orders(b: int, d: int) -> dict[str, tuple[Tensor, Tensor]]:
    ones, big_first = torch.ones(b, d), torch.full((b,), 1e-7 / d**0.5)
    big_first[::256] = 10
    signs = torch.where(torch.arange(b) % 2 == 0, 1.0, -0.999)
    return {
        "equal": (ones * 0.37, torch.full((b,), 10.0)),
        "big before small": (ones, big_first),
        "pairs that cancel": (ones * signs[:, None], torch.full((b,), 10.0)),
    }


@pytest.mark.parametrize(
    ("order", "b", "engine", "dtype"),
    [
        ("equal", 4096, ENGINES[1], torch.bfloat16),
        ("big before small", 256, ENGINES[1], torch.float16),
        ("pairs that cancel", 4096, ENGINES[0], torch.float16),
    ],
    ids=lambda value: type(value).__name__ if value in ENGINES else str(value),
)
def test_one_example_moves_a_large_sum_of_half_precision_within_the_allowance(order, b, engine, dtype) -> None:
    d, model = 16, nn.Linear(16, 16, bias=False).to(dtype)
    x, scale = (part.to(dtype) for part in orders(b, d)[order])
    without = clipped_sum(model, x, scale, 1.0, engine)
    for added in (torch.ones(1, d), -0.3 * torch.ones(1, d)):
        for place in (0, b // 2 + 1, b):
            inputs = torch.cat([x[:place], added.to(dtype), x[place:]])
            scales = torch.cat([scale[:place], scale.new_full((1,), 10), scale[place:]])
            moved = clipped_sum(model, inputs, scales, 1.0, engine) - without
            assert 0.9 < float(moved.norm()) <= MOST


@by_name
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_of_half_precision_weights_are_in_single_precision(dtype: torch.dtype, engine: Any) -> None:
    model = nn.Linear(8, 4).to(dtype)
    clip = PerExampleClip(model, 1.0, engine=engine, capture="eager")
    clip.accumulate(lambda model, x: model(x).sum(), torch.randn(200, 8, dtype=dtype))
    [total] = clip.pop_sums()
    assert all(g.dtype in (torch.float32, torch.float64) for g in total.grads)
    clip.accumulate(lambda model, x: model(x).sum(), torch.zeros(0, 8, dtype=dtype))
    assert all(g.dtype is torch.float32 for g in clip.pop_sums()[0].grads)


REAL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "feed-forward block on a sequence": (
        lambda: nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)),
        lambda: torch.randn(2, 4, 768),
    ),
    "linear": (lambda: nn.Linear(4096, 4096), lambda: torch.ones(2, 4096)),
    "embedding": (lambda: nn.Embedding(8000, 768), lambda: torch.randint(0, 8000, (2, 64))),
    "convolution": (lambda: nn.Conv2d(512, 512, 3, padding=1), lambda: torch.randn(2, 512, 7, 7)),
}


@pytest.mark.parametrize("name", REAL)
def test_norms_of_real_sizes_are_those_of_double_precision(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = REAL[name]
    model, x = make(), inputs()
    for i in range(2):
        alone = clipped_sum(model, x[i : i + 1], torch.full((1,), 1e3), 1.0, engines.BookKeeping())
        assert 2 - MOST <= float(alone.norm()) <= MOST


@pytest.mark.parametrize("fill", [torch.ones, torch.randn], ids=["constant", "normal"])
def test_norm_of_sixteen_million_numbers(fill: Callable[..., Tensor]) -> None:
    rows = fill(1, 16_000_001)
    exact = math.sqrt(sum(float(part.double().square().sum()) for part in rows.flatten().split(2**20)))
    assert float(Dense(rows).squared_norms().double().sqrt()) == pytest.approx(exact, rel=5e-7)


@pytest.mark.parametrize("positions", [1, 3])
def test_norm_of_a_product_of_tiny_and_huge_is_not_lost(positions: int) -> None:
    form = Outer(torch.full((1, positions, 8), 1e-24), torch.full((1, positions, 64), 1e18))
    assert float(form.squared_norms().double().sqrt()) >= float(form.explicit().double().norm()) > 0


def test_gram_product_of_tiny_and_huge_is_not_lost() -> None:
    left, right = torch.full((1, 40, 8), 1e-24), torch.full((1, 40, 512), 1e17)
    truth = float((left[0].double().t() @ right[0].double()).norm())
    found = gram_product(*(torch.bmm(side, side.transpose(1, 2)) for side in (left, right)))
    assert float(found.double().sqrt()) >= truth


def test_adaptive_clip_stays_above_a_floor() -> None:
    rule = AdaptiveClip(0.1, learning_rate=5.0)
    for _ in range(1000):
        rule.adapt(torch.tensor(0.5))  # every example within the bound
    assert rule.max_grad_norm == pytest.approx(1e-7)
    for _ in range(1000):
        rule.adapt(torch.tensor(-0.5))
    assert rule.max_grad_norm == pytest.approx(1e5)


def test_tiny_bounds_and_noise_that_would_vanish_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1e-10"):
        PerExampleClip(nn.Linear(2, 1), clipping=FlatClipping(1e-30))
    p, release = nn.Parameter(torch.zeros(3)), GaussianRelease(SecretKey(bytes(32)), 1.0, 10.0)
    with pytest.raises(ValueError, match="out of range of single precision"):
        release([BoundedSum((p,), (torch.full((3,), 1e-41),), 1e-40)], {id(p): "p"}, step=1)
    assert p.grad is None


def test_the_noise_is_that_of_the_bound_and_the_allowance() -> None:
    p, zeros = nn.Parameter(torch.zeros(4, dtype=torch.float64)), torch.zeros(4, dtype=torch.float64)
    release = GaussianRelease(SecretKey(bytes(32)), 2.0, 10.0)
    release([BoundedSum((p,), (zeros,), 0.5)], {id(p): "p"}, step=1)
    assert release.deviations[id(p)] == pytest.approx(2.0 * 0.5 * MOST / 10.0, rel=1e-12)
    assert ROUNDING == MOST - 1


def test_complex_parameters_are_refused_by_name() -> None:
    model = nn.Linear(3, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex parameters cannot be trained: phase"):
        PerExampleClip(model, 1.0)


def test_noise_on_bfloat16_is_drawn_in_single_precision_and_rounded_once() -> None:
    p, q = (nn.Parameter(torch.zeros(1000, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32))
    for parameter in (p, q):
        release = GaussianRelease(SecretKey(bytes(32)), 1.0, 4.0)
        release([BoundedSum((parameter,), (torch.full((1000,), 3.0),), 1.0)], {id(parameter): "p"}, step=1)
    assert p.grad is not None
    assert q.grad is not None
    assert torch.equal(p.grad, q.grad.bfloat16())
