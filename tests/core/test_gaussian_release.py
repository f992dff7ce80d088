"""A release adds noise of the declared standard deviation once, and divides by the declared constant."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from noisette.core.noise import SecretKey
from noisette.core.release import BoundedSum, GaussianRelease, parts_of, shares_of

NAMES = ["a", "b"]


def bounded(bound: float = 1.0, size: int = 40_000, dtype: torch.dtype = torch.float32) -> BoundedSum:
    params = tuple(nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (size, 7))
    return BoundedSum(params, tuple(torch.full_like(p, 5.0) for p in params), bound)


def names(*sums: BoundedSum) -> dict[int, str]:
    return {id(p): f"{k}.{name}" for k, s in enumerate(sums) for p, name in zip(s.params, NAMES, strict=True)}


def deviation_and_mean(sums: list[BoundedSum], release: GaussianRelease) -> list[tuple[float, float]]:
    release(sums, names(*sums), step=0)
    return [(float(s.params[0].grad.double().std()), float(s.params[0].grad.double().mean())) for s in sums]


@pytest.mark.parametrize(
    ("bound", "noise_multiplier", "expected_batch_size"), [(1e-3, 0.5, 600), (1.0, 4.0, 1), (250.0, 0.5, 0.5)]
)
def test_deviation_is_noise_times_bound_over_the_constant(bound, noise_multiplier, expected_batch_size) -> None:
    release = GaussianRelease(SecretKey(), noise_multiplier, expected_batch_size)
    [(std, mean)] = deviation_and_mean([bounded(bound)], release)
    expected = noise_multiplier * bound / expected_batch_size
    assert abs(std / expected - 1) * math.sqrt(2 * 40_000) <= 6.1
    assert abs(mean - 5 / expected_batch_size) / expected * math.sqrt(40_000) <= 6.1


@pytest.mark.parametrize("k", [1, 2, 4])
def test_several_sums_share_one_mechanism(k: int) -> None:
    sums = [bounded(0.5 + j) for j in range(k)]
    for s, (std, _) in zip(sums, deviation_and_mean(sums, GaussianRelease(SecretKey(), 2.0, 10)), strict=True):
        assert abs(std / (2.0 * s.bound * math.sqrt(k) / 10) - 1) * math.sqrt(2 * 40_000) <= 6.1


@pytest.mark.parametrize(
    ("asked", "given"), [([None, 0.01], [0.99, 0.01]), ([0.2, None, 0.2, None], [0.2, 0.3, 0.2, 0.3]), ([], [])]
)
def test_sums_without_a_share_get_equal_parts_of_the_rest(asked: list, given: list[float]) -> None:
    assert shares_of([replace(bounded(size=1), share=share) for share in asked]) == pytest.approx(given)
    assert sum(given) == pytest.approx(1 if given else 0)


@pytest.mark.parametrize(
    "asked", [[0.5, 0.4], [0.6, 0.6], [None, 1.0], [None, 1.1], [-0.5, 1.5], [0.0, 1.0], [math.nan]]
)
def test_shares_that_do_not_add_up_to_one_are_refused(asked: list) -> None:
    sums = [replace(bounded(size=1), share=share) for share in asked]
    with pytest.raises(ValueError, match="add up to one"):
        GaussianRelease(SecretKey(), 1.0, 1)(sums, names(*sums), step=0)
    assert all(p.grad is None for s in sums for p in s.params)


@pytest.mark.parametrize("asked", [[None], [None, None, None], [0.01, None], [0.9, 0.05, None]])
def test_an_example_at_every_bound_changes_all_sums_by_one_unit_of_noise(asked: list) -> None:
    """Releases of two neighbours with the same noise differ by 1 / z in units of the standard deviations."""
    bounds, z, key = [0.3, 2.0, 50.0], 1.7, SecretKey()
    squared = 0.0
    sums, moved = (
        [replace(bounded(b, size=1, dtype=torch.float64), share=share) for b, share in zip(bounds, asked, strict=False)]
        for _ in range(2)
    )
    for s in moved:
        s.grads[0][0] += s.bound
    for given in (sums, moved):
        GaussianRelease(key, z, 10)(given, names(*given), step=3)
    for s, m, share in zip(sums, moved, shares_of(sums), strict=True):
        std = z * s.bound / math.sqrt(share) / 10
        squared += sum(float(((p.grad - q.grad) / std).square().sum()) for p, q in zip(s.params, m.params, strict=True))
    assert math.sqrt(squared) == pytest.approx(1 / z, rel=1e-9)


def test_a_tensor_that_is_no_parameter_is_named_after_its_sum() -> None:
    key, count = SecretKey(), torch.zeros((), dtype=torch.float64)
    extra = BoundedSum((count,), (torch.zeros((), dtype=torch.float64),), 0.5, 0.5, "clipping count")
    s = bounded(size=3)
    GaussianRelease(key, 1.0, 1)([s, extra], names(s), step=0)
    alone = nn.Parameter(torch.zeros((), dtype=torch.float64))
    same = BoundedSum((alone,), (torch.zeros((), dtype=torch.float64),), 0.5 * math.sqrt(2))
    GaussianRelease(key, 1.0, 1)([same], {id(alone): ".clipping count"}, step=0)
    assert float(count.grad) == pytest.approx(float(alone.grad), rel=1e-12)
    assert count.grad != 0


def test_two_tensors_of_one_name_are_refused() -> None:
    """They would get the same noise, so their difference would have none."""
    one, two = bounded(size=3), bounded(size=3)
    same = names(one) | {id(p): name for p, name in zip(two.params, names(one).values(), strict=True)}
    with pytest.raises(ValueError, match="4 tensors have only 2 different names"):
        GaussianRelease(SecretKey(), 1.0, 1)([one, two], same, step=0)
    with pytest.raises(ValueError, match="2 tensors have only 1 different names"):
        GaussianRelease(SecretKey(), 1.0, 1)([one], {}, step=0)
    assert one.params[0].grad is None


def test_parts_are_named_when_there_is_more_than_a_gradient() -> None:
    gradient = bounded(size=1)
    assert parts_of([gradient]) == parts_of([gradient, gradient]) == ()
    count = replace(gradient, share=0.25, name="clipping count")
    assert parts_of([gradient, count, gradient]) == (("gradient", 0.75), ("clipping count", 0.25))


def shared(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(120.0)
    one = {"one tensor": memory[:80], "two views": memory[:80], "parts": memory[:80], "a single": memory[:1].expand(80)}
    other = {"one tensor": one[kind], "two views": memory.view(-1)[:80], "parts": memory[40:], "a single": memory[:80]}
    return one[kind], other[kind]


@pytest.mark.parametrize("apart", [False, True], ids=["in one sum", "in two"])
@pytest.mark.parametrize("kind", ["one tensor", "two views", "parts", "a single"])
def test_sums_in_one_memory_get_noise_of_their_own(kind: str, apart: bool) -> None:
    """A compiler may return one tensor for two sums that are always equal, such as those of an LSTM's two biases."""
    params = tuple(nn.Parameter(torch.zeros(80)) for _ in range(2))
    plain = tuple(nn.Parameter(torch.zeros(80)) for _ in range(2))
    key, release = SecretKey(), []
    for given, grads in ((params, shared(kind)), (plain, tuple(g.clone() for g in shared(kind)))):
        sums = [BoundedSum(given, grads, 1.0)]
        if apart:
            sums = [BoundedSum((p,), (g,), 1.0) for p, g in zip(given, grads, strict=True)]
        GaussianRelease(key, 1.0, 4)(sums, {id(p): name for p, name in zip(given, NAMES, strict=True)}, step=0)
        release.append([p.grad.clone() for p in given])
    for found, expected in zip(*release, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert params[0].grad.data_ptr() != params[1].grad.data_ptr()


def test_all_parameters_get_noise_of_their_own() -> None:
    s = BoundedSum(
        tuple(nn.Parameter(torch.zeros(50)) for _ in range(2)), tuple(torch.zeros(50) for _ in range(2)), 1.0
    )
    GaussianRelease(SecretKey(), 1.0, 1)([s], names(s), step=0)
    a, b = (p.grad for p in s.params)
    assert not torch.equal(a, b)
    assert bool(a.all())
    assert bool(b.all())


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradient_has_the_precision_of_the_parameter(kind: torch.dtype) -> None:
    """Noise is drawn and added in single precision at least; only the result is rounded."""
    key = SecretKey()
    exact, low = bounded(dtype=torch.float64), bounded(dtype=kind)
    for s in (exact, low):
        GaussianRelease(key, 1.0, 1)([s], names(s), step=0)
    grad = low.params[0].grad
    assert grad.dtype == kind
    error = (grad.double() - exact.params[0].grad).abs() / exact.params[0].grad.abs().clamp(min=1)
    assert float(error.max()) <= 2 * torch.finfo(kind).eps + 1e-5 * (kind != torch.float64)


@pytest.mark.parametrize("bound", [0.0, float("inf"), float("nan"), -1.0])
def test_bound_that_gives_no_noise_is_refused(bound: float) -> None:
    s = bounded(bound)
    with pytest.raises(ValueError, match="standard deviation above 0"):
        GaussianRelease(SecretKey(), 1.0, 1)([s], names(s), step=0)
    assert s.params[0].grad is None
