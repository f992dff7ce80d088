"""A bound that follows a quantile: by hand, on a toy problem, and as one mechanism with the gradient."""

import math

import pytest
import torch
from torch import Tensor, nn

from engine_check import every_engine
from noisette import AdaptiveClip, FlatClipping, Ledger, PerExampleClip, RdpAccountant
from noisette.core.noise import SecretKey
from noisette.core.release import ROUNDING, GaussianRelease, shares_of
from small_loop import start, take_steps


def line() -> nn.Module:
    """The gradient of an example's output is the example."""
    return nn.Sequential(nn.Linear(3, 1, bias=False), nn.Flatten(0))


def lengths(*norms: float) -> Tensor:
    x = torch.zeros(len(norms), 3)
    x[:, 1] = torch.tensor(norms)
    return x


def released(clip: PerExampleClip, release: GaussianRelease, step: int = 0):
    sums = clip.pop_sums()
    release(sums, {id(p): name for name, p in clip.parameters.items()}, step=step)
    clip.after_step()
    return sums


@every_engine
def test_bound_moves_as_computed_by_hand(engine) -> None:
    rule = AdaptiveClip(2.0, target_quantile=0.6, learning_rate=0.5, count_share=0.04)
    model = line()
    clip = PerExampleClip(model, clipping=rule, engine=engine)
    clip.accumulate(lambda model, x: model(x), lengths(1.0, 1.9, 2.1, 50.0, 0.0))
    gradient, count = clip.pop_sums()
    assert (gradient.bound, gradient.share) == (2.0, None)
    assert (count.bound, count.share, count.name) == (0.5, 0.04, "clipping count")
    assert float(count.grads[0]) == 0.5, "three within, two beyond, one half each"
    assert float(gradient.grads[0].sum()) == pytest.approx(1 + 1.9 + 2 + 2, rel=1e-5)
    assert shares_of([gradient, count]) == [0.96, 0.04]
    GaussianRelease(SecretKey(), 1e-12, 8)([gradient, count], {id(p): n for n, p in clip.parameters.items()}, step=0)
    assert rule.max_grad_norm == 2.0
    clip.after_step()
    after = 2.0 * math.exp(-0.5 * (0.5 / 8 + 0.5 - 0.6))
    assert rule.max_grad_norm == pytest.approx(after, rel=1e-9)
    clip.after_step()
    assert rule.max_grad_norm == pytest.approx(after, rel=1e-9), "a count is used once"
    clip.accumulate(lambda model, x: model(x), lengths(50.0))
    gradient, count = clip.pop_sums()
    assert gradient.bound == pytest.approx(after, rel=1e-9)
    assert float(gradient.grads[0].sum()) == pytest.approx(after, rel=1e-5)
    assert float(count.grads[0]) == -0.5


@every_engine
def test_each_example_is_counted_once_in_any_pieces(engine) -> None:
    norms, model = [0.1, 3.0, 1.0, 5.0, 1.0, 1.0, 2.5], line()
    for size in (1, 2, 7):
        clip = PerExampleClip(model, clipping=AdaptiveClip(2.0), engine=engine)
        for piece in lengths(*norms).split(size):
            clip.accumulate(lambda model, x: model(x), piece)
        _, count = clip.pop_sums()
        _, none = clip.pop_sums()
        assert (float(count.grads[0]), float(none.grads[0])) == (0.5 * (4 - 3), 0.0)


def test_all_pieces_of_a_batch_have_one_bound() -> None:
    """Also when a release comes between them, as it may by hand."""
    model, rule = line(), AdaptiveClip(1.0, learning_rate=2.0)
    clip = PerExampleClip(model, clipping=rule)
    clip.accumulate(lambda model, x: model(x), lengths(50.0))
    first = clip.pop_sums()
    clip.accumulate(lambda model, x: model(x), lengths(50.0))
    GaussianRelease(SecretKey(), 1e-9, 1)(first, {id(p): n for n, p in clip.parameters.items()}, step=0)
    clip.after_step()
    assert rule.max_grad_norm > 2
    clip.accumulate(lambda model, x: model(x), lengths(50.0))
    gradient, _ = clip.pop_sums()
    assert (gradient.bound, float(gradient.grads[0].sum())) == (1.0, pytest.approx(2.0, rel=1e-5))
    clip.accumulate(lambda model, x: model(x), lengths(50.0))
    gradient, _ = clip.pop_sums()
    assert gradient.bound == rule.max_grad_norm == pytest.approx(float(gradient.grads[0].sum()), rel=1e-5)


@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0 - 1e-4, 7.0])
def test_neighbours_differ_by_one_unit_of_noise_at_most(share: float, norm: float) -> None:
    """The same coins with one record and without: all that is released, in units of its noise, differs by <= 1 / z."""
    z, key, model = 1.3, SecretKey(), line()
    seen = []
    for batch in (lengths(0.2, 3.0, norm), lengths(0.2, 3.0)):
        clip = PerExampleClip(model, clipping=AdaptiveClip(1.0, count_share=share))
        clip.accumulate(lambda model, x: model(x), batch)
        sums = released(clip, GaussianRelease(key, z, 10))
        deviations = [
            z * s.bound * (1 + ROUNDING) / math.sqrt(part) / 10 for s, part in zip(sums, shares_of(sums), strict=True)
        ]
        seen.append([s.params[0].grad.double().clone() / d for s, d in zip(sums, deviations, strict=True)])
    moved = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(*seen, strict=True)))
    assert moved <= 1 / z
    if norm >= 1 - 1e-4:
        assert moved >= 0.999 / z, "the bound is reached: neither part gets more noise than it needs"


def test_count_is_in_the_ledger_and_costs_nothing_more(tmp_path) -> None:
    epsilons = []
    for clipping in (AdaptiveClip(1.0), FlatClipping(1.0)):
        ledger = Ledger(tmp_path / f"{type(clipping).__name__}.jsonl")
        declared = {"sampling_rate": 0.1, "expected_batch_size": 5, "steps": 4, "noise_multiplier": 2.0}
        declared |= {"accountant": RdpAccountant(), "ledger": ledger}
        with start(line(), torch.randn(50, 3), clip={"clipping": clipping}, **declared) as run:
            take_steps(run, lambda model, x: model(x))
            epsilons.append(run.epsilon(delta=1e-3))
    [(event, times)] = Ledger.read(tmp_path / "AdaptiveClip.jsonl").events.items()
    assert (times, event.parts) == (4, (("gradient", 0.99), ("clipping count", 0.01)))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)


def test_sums_popped_without_a_release_do_not_repeat_the_last_count() -> None:
    rule = AdaptiveClip(0.5)
    clip = PerExampleClip(line(), clipping=rule)
    *_, count = clip.pop_sums()
    count.params[0].grad = torch.tensor(0.3, dtype=torch.float64)
    clip.after_step()
    released = rule.max_grad_norm
    clip.pop_sums()
    clip.after_step()
    assert rule.max_grad_norm == released
