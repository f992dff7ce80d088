"""The Lipschitz bound against a loop over single examples in double precision, and against worst-case searches."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import NETWORKS, X0, dense, joint, sum_of_gradients
from noisette import AdaptiveClip, FlatClipping, LipschitzBound, PrivacyError, PrivateRun, privatize
from noisette.lipschitz import NormBound, Sensitivities
from noisette.lipschitz.bound import largest_gradient_ratio
from noisette.nn.lipschitz import BoundedInput, GroupSort2, PatchConv2d, SpectralLinear, TauCrossEntropy

F = nn.functional
SQRT2 = math.sqrt(2)


def bound_of(model: nn.Module, width: int, tau: float = 1.0, **settings: object) -> LipschitzBound:
    return LipschitzBound(model, loss=TauCrossEntropy(tau), input_shape=(width,), **settings)  # pyright: ignore[reportArgumentType]


def some(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 6, dtype=torch.float64), torch.randint(0, 4, (count,))


def add(bound: LipschitzBound | PrivateRun, loss: Any, *batch: Tensor) -> None:
    """Add the gradients of the loss's values, each times the weight of its example where one is given."""

    def of_one(model: nn.Module, x: Tensor, y: Tensor, weight: Tensor | float = 1.0) -> Tensor:
        return weight * loss(model(x), y)

    bound.accumulate(of_one, *batch)


def summed(bound: LipschitzBound, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    add(bound, bound.loss, x, y, torch.full((len(x),), factor))
    return joint(bound.pop_sums())


def test_sensitivities_are_those_of_two_layers_by_hand() -> None:
    bound = bound_of(dense(4, 4, 3), 4, slack=0.0)
    assert list(bound.sensitivities().values()) == pytest.approx([2 * SQRT2, 2 * SQRT2], rel=1e-6)


def test_deviations_of_two_layers_by_hand() -> None:
    roots = 4, math.sqrt(12)  # of the numbers of weights
    for part, root in zip(bound_of(dense(4, 4, 3), 4, slack=0.0).pop_sums(), roots, strict=True):
        expected = 1.5 * 2 * SQRT2 * math.sqrt(sum(roots) / root)
        assert 1.5 * part.bound / math.sqrt(part.share) == pytest.approx(expected, rel=1e-6)


def test_a_loss_that_breaks_its_promise_is_held_to_it() -> None:
    bound = bound_of(dense(6, 8, 4), 6, slack=0.0)
    x, y = torch.randn(1, 6, dtype=torch.float64), torch.tensor([1])
    moved = summed(bound, x, y, factor=1000.0)
    assert float(moved.norm()) <= math.hypot(*bound.sensitivities().values())
    assert float(F.cosine_similarity(moved, summed(bound, x, y), dim=0)) == pytest.approx(1)


def test_clipping_at_the_scores_lowers_every_sensitivity() -> None:
    model = dense(6, 8, 4)
    plain, clipped = bound_of(model, 6, slack=0.0), bound_of(model, 6, slack=0.0, logit_clipping=FlatClipping(0.1))
    for name, limit in clipped.sensitivities().items():
        assert limit == pytest.approx(plain.sensitivities()[name] * 0.1 / SQRT2)
    x, y = torch.randn(1, 6, dtype=torch.float64), torch.tensor([1])
    expected, scores = sum_of_gradients(model, x, y, 1.0), model(x).detach().requires_grad_()
    [at_scores] = torch.autograd.grad(F.cross_entropy(scores, y), [scores])
    assert torch.allclose(summed(clipped, x, y), expected * 0.1 / at_scores.norm(), rtol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 1e300])
def test_a_malformed_record_adds_no_more_than_any_other(value: float) -> None:
    model, (x, y) = dense(6, 8, 4), some(4)
    bound = bound_of(model, 6)
    good = summed(bound, x[:3], y[:3])
    x[3, 2] = value
    moved = summed(bound, x, y) - good
    assert moved.isfinite().all()
    assert float(moved.norm()) <= math.hypot(*bound.sensitivities().values())


def test_weights_are_projected_at_the_start_and_after_the_user_changes_them() -> None:
    model = dense(6, 8, 4)
    with torch.no_grad():
        model[1].weight.mul_(50)
    bound = bound_of(model, 6)
    assert largest(model) <= 1 + 1e-6
    x, y = torch.randn(2, 6, dtype=torch.float64), torch.tensor([0, 1])
    for begins in (bound.begin_batch, lambda: summed(bound, x, y), bound.pop_sums):
        with torch.no_grad():
            model[1].weight.mul_(9)
        assert largest(model) > 2
        begins()
        assert largest(model) <= 1 + 1e-6


def test_half_precision_is_refused_and_single_precision_taken_back() -> None:
    model, (x, y) = dense(6, 8, 4).float(), some(2)
    bound = bound_of(model, 6)
    with pytest.raises(PrivacyError, match="autocast"), torch.autocast("cpu", torch.bfloat16):
        add(bound, bound.loss, x.float(), y)
    model.bfloat16()
    with pytest.raises(PrivacyError, match=r"half precision.*call model\.float\(\)"):
        add(bound, bound.loss, x.bfloat16(), y)
    model.float()
    model[3].weight.data = 9 * model[3].weight.data
    add(bound, bound.loss, x.float(), y)
    assert largest(model) <= 1 + 1e-6, "cast and replaced weights are projected again"


def largest(model: nn.Module) -> float:
    return max(float(torch.linalg.matrix_norm(p.detach(), 2)) for p in model.parameters())


def test_a_wild_run_stays_feasible_at_every_step() -> None:
    model = dense(6, 8, 8, 4)
    bound = bound_of(model, 6)
    sgd, records = torch.optim.SGD(model.parameters(), lr=10.0), some(60)
    settings = {"sampling_rate": 0.2, "expected_batch_size": 12, "steps": 12, "noise_multiplier": 10.0}
    with privatize(bound, sgd, records, **settings) as run:  # pyright: ignore[reportArgumentType]
        for batch in run.batches():
            for x, y in batch.microbatches(8):
                add(run, bound.loss, x, y)
            run.optimizer.step()
            run.optimizer.zero_grad()
            assert largest(model) <= 1 + 1e-6
            assert all(p.isfinite().all() for p in model.parameters())
    assert run.steps_taken == 12


def test_the_noise_of_each_parameter_is_that_of_its_part() -> None:
    model = dense(64, 512, 4)
    bound, sgd = bound_of(model, 64, slack=0.0), torch.optim.SGD(model.parameters(), lr=0.0)
    nothing = torch.zeros(1, 64, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    settings = {"sampling_rate": 1e-12, "expected_batch_size": 10, "steps": 1, "noise_multiplier": 3.0}
    with privatize(bound, sgd, nothing, **settings) as run:  # pyright: ignore[reportArgumentType]
        parts = bound.pop_sums()
        for _ in run.batches():
            sgd.step()
        for part in parts:
            for p in part.params:
                expected = 3.0 * part.bound / math.sqrt(part.share) / 10
                z = (float(p.grad.std()) / expected - 1) * math.sqrt(2 * p.numel())
                assert abs(z) < 6.1


class Understated(nn.Module):
    """A layer that states half of its true bound."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SpectralLinear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def bound_forward(self, x: NormBound) -> NormBound:
        return self.inner.bound_forward(x)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        g, found = self.inner.bound_backward(x, g)
        return g, {p: value / 2 for p, value in found.items()}


def test_a_module_that_understates_its_bound_is_refused() -> None:
    model = nn.Sequential(BoundedInput(2.0), Understated(), GroupSort2(), SpectralLinear(6, 4)).double()
    with pytest.raises(PrivacyError, match=r"times its bound.* modules \(Understated\) do not hold"):
        bound_of(model, 6, tau=20.0)


def test_the_search_comes_close_to_bounds_that_hold_and_changes_nothing() -> None:
    layers = BoundedInput(3.0), PatchConv2d(1, 4, patch=2), GroupSort2(), nn.Flatten(), SpectralLinear(16, 3)
    model = nn.Sequential(*layers)
    bound = LipschitzBound(model, loss=TauCrossEntropy(8.0), input_shape=(1, 4, 4))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    found = largest_gradient_ratio(model, (1, 4, 4), bound.score_gradient_bound(), bound.sensitivities())
    assert 0.5 < found <= 1 + 1e-5
    assert torch.equal(torch.rand(3), expected)
    assert all(p.grad is None for p in model.parameters())


LAYERS = {
    "plain linear layer": (nn.Sequential(BoundedInput(1.0), nn.Linear(6, 4)), "SpectralLinear"),
    "no bounded input": (nn.Sequential(SpectralLinear(6, 4)), "BoundedInput"),
    "frozen and unknown in between": (
        nn.Sequential(BoundedInput(1.0), SpectralLinear(6, 6), nn.Linear(6, 4).requires_grad_(False)),
        "BoundedInput",
    ),
    "weight norm": (
        nn.Sequential(BoundedInput(1.0), nn.utils.parametrizations.weight_norm(SpectralLinear(6, 4))),
        "parametrized",
    ),
}


def test_numbers_outside_their_domain_and_stray_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="slack"):
        bound_of(dense(6, 4), 6, slack=-0.1)
    with pytest.raises(ValueError, match="needs one constant norm"):
        bound_of(dense(6, 4), 6, logit_clipping=AdaptiveClip(0.1))
    with pytest.raises(ValueError, match="no trainable parameter"):
        bound_of(dense(6, 4).requires_grad_(False), 6)
    model = dense(6, 8, 4)
    model.register_parameter("stray", nn.Parameter(torch.zeros(3)))
    with pytest.raises(PrivacyError, match="no module states a sensitivity for stray"):
        bound_of(model, 6)


@pytest.mark.parametrize(("model", "message"), LAYERS.values(), ids=LAYERS)
def test_a_model_without_a_bound_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        bound_of(model, 6)


SENSITIVITIES = {"a": 0.01, "b": 0.03, "c": 0.002}
PARAMETERS = {"a": torch.zeros(1000), "b": torch.zeros(50_000), "c": torch.zeros(100)}


def test_noise_follows_the_closed_form() -> None:
    shares = LipschitzBound.shares(SimpleNamespace(parameters=PARAMETERS), SENSITIVITIES)  # pyright: ignore
    found = {name: SENSITIVITIES[name] / math.sqrt(share) for name, share in shares.items()}
    assert list(found.values()) == pytest.approx((0.0471979, 0.0307426, 0.0375351), abs=1e-7)
    energy = sum(found[name] ** 2 * p.numel() for name, p in PARAMETERS.items())
    assert energy == pytest.approx(49.6240, abs=1e-4), "less than 51.3044, that of one deviation for all"
    # One example changes all parameters together by one standard deviation.
    assert sum((SENSITIVITIES[name] / found[name]) ** 2 for name in found) == pytest.approx(1, rel=1e-12)


TAU = 20.0


def ratio(bound: LipschitzBound, x: Tensor, label: int, target: str) -> Tensor:
    loss = F.cross_entropy(TAU * bound.model(x), torch.tensor([label])) / TAU
    [gradient] = torch.autograd.grad(loss, [bound.parameters[target]], create_graph=True)
    return gradient.norm() / bound.sensitivities()[target]


def largest_ratio(model: nn.Module, shape: tuple[int, ...], target: str, steps: int = 250, classes: int = 3) -> float:
    bound = LipschitzBound(model, loss=TauCrossEntropy(TAU), input_shape=shape, slack=0.0)
    x = torch.randn(1, *shape, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.Adam([x, *bound.parameters.values()], lr=0.05, maximize=True)
    best, best_label = 0.0, 0
    for step in range(steps):
        label = step * classes // steps if step < steps // 2 else best_label
        reached = ratio(bound, x, label, target)
        if float(reached.detach()) > best:
            best, best_label = float(reached.detach()), label
        ascent.zero_grad()
        reached.backward()
        ascent.step()
        with torch.no_grad():
            x.mul_(X0 / x.norm())
        bound.after_step()
    return best


every_network = pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)


@every_network
@pytest.mark.parametrize(("steps", "seeds"), [(40, [1]), pytest.param(400, [0, 1, 2], marks=pytest.mark.slow)])
def test_no_search_exceeds_a_bound(make, shape, steps, seeds) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        for target, _ in make().named_parameters():
            assert largest_ratio(make().double(), shape, target, steps=steps) <= 1 + 1e-9


def test_the_bounds_of_a_dense_network_are_reached() -> None:
    for target, _ in dense(6, 6, 6, 3).named_parameters():
        reached = []
        for seed in range(2):
            torch.manual_seed(seed)
            reached.append(largest_ratio(dense(6, 6, 6, 3), (6,), target, steps=200))
        assert max(reached) >= 0.99


def test_the_search_finds_a_loss_that_understates_its_constant(monkeypatch) -> None:
    monkeypatch.setattr(TauCrossEntropy, "lipschitz", lambda self, logit_bound=None: 1.0)
    torch.manual_seed(0)
    assert largest_ratio(dense(6, 6, 6, 3), (6,), "5.weight", steps=100) > 1.1
