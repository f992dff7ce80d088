"""The loss of one example, vectorised, against a loop over single examples in double precision."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import NETWORKS, dense, joint, sum_of_gradients
from model_cases import Forward
from noisette import LipschitzBound, PrivacyError
from noisette.nn import lipschitz as lip

F = nn.functional
TAU = 5.0
MORE = {
    "modules of torch": (
        lambda: nn.Sequential(
            *(lip.BoundedInput(1.0), lip.SpectralConv2d(3, 8, 3, padding=1), nn.ELU(), nn.AvgPool2d(2)),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Unflatten(1, (16, 8)), lip.TokenMix(lip.SpectralLinear(16, 3))),
            *(nn.Flatten(), lip.BoundedInput(0.5), nn.Softplus(), lip.SpectralLinear(24, 3)),
        ),
        (3, 16, 16),
    ),
    "one score": (lambda: nn.Sequential(lip.BoundedInput(1.0), lip.SpectralLinear(5, 3), nn.Tanh()), (5,)),
}
every_network = pytest.mark.parametrize(("make", "shape"), (NETWORKS | MORE).values(), ids=NETWORKS | MORE)


def bound_of(model: nn.Module, shape: tuple[int, ...] = (6,), **settings: Any) -> LipschitzBound:
    return LipschitzBound(model, loss=lip.TauCrossEntropy(TAU), input_shape=shape, **settings)


def of_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return lip.TauCrossEntropy(TAU)(model(x), y)


def some(shape: tuple[int, ...], count: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *shape, dtype=torch.float64)
    x[0] *= 1e6
    return x, torch.randint(0, 3, (count,))


@every_network
def test_the_sum_is_that_of_single_examples(make, shape) -> None:
    model = make().double()
    bound = bound_of(model, shape)
    x, y = some(shape)
    bound.accumulate(of_one, x, y)
    assert torch.allclose(joint(bound.pop_sums()), sum_of_gradients(model, x, y, TAU), rtol=0, atol=1e-11)


def test_microbatches_add_up_and_an_empty_one_adds_nothing() -> None:
    bound = bound_of(dense(6, 8, 3))
    x, y = some((6,), 9)
    bound.accumulate(of_one, x, y)
    whole = joint(bound.pop_sums())
    for part in (slice(0, 2), slice(2, 2), slice(2, 9)):
        bound.accumulate(of_one, x[part], y[part])
    assert torch.allclose(joint(bound.pop_sums()), whole, atol=1e-12)
    bound.accumulate(of_one, x[:0], y[:0])
    assert not joint(bound.pop_sums()).any()


def test_an_example_that_is_not_finite_contributes_nothing() -> None:
    bound = bound_of(dense(6, 8, 3))
    x, y = some((6,))
    weights = torch.ones(5, dtype=torch.float64)
    weights[:2] = torch.tensor([math.nan, math.inf])
    bound.accumulate(lambda model, x, y, w: w * of_one(model, x, y), x, y, weights)
    spoilt = joint(bound.pop_sums())
    bound.accumulate(of_one, x[2:], y[2:])
    assert torch.allclose(spoilt, joint(bound.pop_sums()), atol=1e-12)


x, y = some((6,))
REFUSED: dict[str, tuple[Any, str]] = {
    "a row of losses": (lambda model, x, y: model(x), "a tensor with one value, got shape"),
    "a penalty": (
        lambda model, x, y: of_one(model, x, y) + model[1].weight.square().sum(),
        r"depend on 1\.weight other than through the scores",
    ),
    "an earlier call": (lambda m, x, y: (of_one(m, -x, y), of_one(m, x, y))[0], "the scores of 2 calls"),
    "no gradient": (lambda model, x, y: model(x).detach().sum(), "do not depend on the scores"),
    "a part of the model": (lambda model, x, y: model[1](model[0](x)).sum(), "do not come from a call of the model"),
    "a constant": (lambda m, x, y: of_one(m, torch.ones_like(m[1].weight[:1]), y), "do not depend on the example"),
    "another vmap": (lambda m, x, y: torch.vmap(lambda row: m(row[None]).sum())(x).sum(), "inside of another vmap"),
}


@pytest.mark.parametrize(("loss", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_bound_is_refused(loss, message) -> None:
    bound = bound_of(dense(6, 8, 3))
    with pytest.raises(PrivacyError, match=message):
        bound.accumulate(loss, x, y)
    assert not joint(bound.pop_sums()).any(), "nothing is pending"


def test_weights_that_the_loss_changes_are_refused() -> None:
    bound = bound_of(dense(6, 8, 3))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = of_one(model, x, y)
        with torch.no_grad():
            model.get_parameter("3.weight").mul_(0.5)
        return losses

    with pytest.raises(PrivacyError, match=r"^3.weight: changed between the first records"):
        bound.accumulate(loss, x, y)


def test_a_parameter_that_was_frozen_since_has_a_sum_of_zeros() -> None:
    model = dense(6, 8, 3)
    bound, expected = bound_of(model), sum_of_gradients(model, x, y, TAU)[48:]
    model.get_parameter("1.weight").requires_grad_(False)
    bound.accumulate(of_one, x, y)
    sums = joint(bound.pop_sums())
    assert not sums[:48].any()
    assert torch.allclose(sums[48:], expected, atol=1e-11)
    model.requires_grad_(False)
    with pytest.raises(PrivacyError, match=r"unfreeze one \(requires_grad_\(\)\)"):
        bound.accumulate(of_one, x, y)


def test_a_loss_may_write_into_its_scores_and_ask_the_model_without_gradients() -> None:
    model = dense(6, 8, 3)
    bound = bound_of(model)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            model(-x)
        scores = model(x)
        scores.sub_(7.0)
        return lip.TauCrossEntropy(TAU)(scores, y)

    bound.accumulate(loss, x, y)
    assert torch.allclose(joint(bound.pop_sums()), sum_of_gradients(model, x, y, TAU), atol=1e-11)


def test_weights_of_the_classes_of_the_batch_are_refused_unless_they_are_public() -> None:
    bound = bound_of(dense(6, 8, 3))
    for step in range(2):
        counts = torch.bincount(y, minlength=3).double() + 1
        loss = lambda model, x, y, counts=counts: of_one(model, x, y) / counts[y]  # noqa: E731
        if step:
            with pytest.raises(PrivacyError, match=r"accumulate\(..., public=\[tensor\]\)"):
                bound.accumulate(loss, x, y)
            bound.accumulate(loss, x, y, public=[counts])
        else:
            bound.accumulate(loss, x, y)


def test_a_tensor_that_an_earlier_call_has_left_is_refused() -> None:
    bound = bound_of(dense(6, 8, 3))
    kept: list[Tensor] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept.append(2 * x)
        return of_one(model, x, y) * kept[0].sum()

    bound.accumulate(loss, x, y)
    with pytest.raises(PrivacyError, match="an earlier call has computed"):
        bound.accumulate(loss, x, y)


def test_a_number_of_python_is_that_of_the_batch() -> None:
    def noted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn.append(random.random())
        return of_one(model, x, y)

    bound, drawn = bound_of(dense(6, 8, 3)), list[float]()
    for seed in (1, 2):
        bound.begin_batch(1.0, seed)
        for _ in range(2):
            bound.accumulate(noted, x, y)
        bound.end_batch()
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def counts(m: Forward, x: Tensor) -> Tensor:
    m.calls += 1
    m.seen = m.seen + x
    return x + 0 * m.seen


def test_what_a_call_writes_into_buffers_is_dropped() -> None:
    counting, layers = Forward(counts, calls=torch.zeros(()), seen=torch.zeros(1, 6).double()), dense(6, 8, 3)
    bound = bound_of(nn.Sequential(counting, *layers))
    for _ in range(2):
        bound.accumulate(of_one, x, y)
    assert counting.calls == 0
    assert not counting.seen.any()
    assert torch.allclose(joint(bound.pop_sums()), 2 * sum_of_gradients(layers, x, y, TAU), atol=1e-11)


@every_network
def test_one_record_moves_a_sum_in_single_precision_by_its_bound_and_the_allowance(make, shape) -> None:
    """The loss asks for more than its bound, so the gradient at the scores of each record is as long as it may be."""
    bound = bound_of(make(), shape, slack=0.0)
    many, one = torch.randn(128, *shape), 50 * torch.ones(1, *shape)

    def steep(model: nn.Module, x: Tensor) -> Tensor:
        return 1e3 * model(x)[:, 0].sum()

    bound.accumulate(steep, many)
    without = [part.grads for part in bound.pop_sums()]
    bound.accumulate(steep, torch.cat([many, one]))
    parts = bound.pop_sums()
    for part, grads in zip(parts, without, strict=True):
        moved = torch.cat([(g.double() - h.double()).flatten() for g, h in zip(part.grads, grads, strict=True)])
        assert float(moved.norm()) <= part.bound * (1 + 2**-13)
    assert any(float((part.grads[0] - grads[0]).norm()) > 0 for part, grads in zip(parts, without, strict=True))
