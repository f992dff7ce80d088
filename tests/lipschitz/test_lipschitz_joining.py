"""Bounds of branches, constants and shared weights, and refused arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from noisette.lipschitz import NormBound, propagation
from noisette.nn.lipschitz import (
    Abs,
    BallBias,
    BoundedInput,
    GroupSort2,
    L2NormPool2d,
    LayerCentering,
    LipschitzConcat,
    LipschitzResidual,
    MixerBlock,
    PatchConv2d,
    Scale,
    SpectralConv2d,
    SpectralLinear,
    TokenMix,
)

ONE = NormBound(1.0, (4,))


def bounds(model: nn.Module, shape: tuple[int, ...], g: float) -> dict[str, float]:
    """One example's bound for each parameter, by name."""
    _, found = propagation.backward(model, NormBound(math.inf, shape), g)
    return {name: found[p] for name, p in model.named_parameters()}


def conv_net(bias: nn.Module) -> nn.Sequential:
    branch = nn.Sequential(SpectralConv2d(4, 4, 1), GroupSort2())
    return nn.Sequential(
        BoundedInput(1.0),
        SpectralConv2d(2, 4, 3, padding=1),
        bias,
        GroupSort2(),
        L2NormPool2d(2),
        LayerCentering(1),
        LipschitzResidual(branch),
        nn.Flatten(),
        SpectralLinear(36, 3),
    )


def test_the_bounds_of_a_convolutional_net_are_those_worked_out_by_hand() -> None:
    model = conv_net(bias := BallBias(4, 0.3))
    bias.set_certified_norms(torch.tensor([0.3]))
    found = bounds(model, (2, 6, 6), math.sqrt(2))
    assert propagation.forward(model[:3], NormBound(9.0, (2, 6, 6))).norm == pytest.approx(1.3, rel=1e-5)
    assert list(found.values()) == pytest.approx([1.4142136, 1.4142136, 1.3 * 0.7071068, 1.3 * 1.4142136], rel=1e-5)


def test_every_matrix_of_a_mixer_has_the_same_bound() -> None:
    model = nn.Sequential(
        BoundedInput(3.0),
        PatchConv2d(3, 64, patch=4),
        MixerBlock(tokens=64, channels=64),
        nn.Flatten(),
        SpectralLinear(4096, 10),
    )
    found = bounds(model, (3, 32, 32), math.sqrt(2))
    assert list(found.values()) == pytest.approx([4.2426407] * 6, rel=1e-4)
    assert found["4.weight"] / 2500 == pytest.approx(0.0016970563, rel=1e-4)


def test_a_residual_sum_doubles_the_gradient_and_a_mean_does_not() -> None:
    branch = SpectralLinear(4, 4)
    assert LipschitzResidual(branch, a=1.0, c=1.0).bound_backward(ONE, 3.0)[0] == pytest.approx(6.0)
    g, sensitivities = LipschitzResidual(branch).bound_backward(ONE, 3.0)
    assert g == pytest.approx(3.0)
    assert sensitivities[branch.weight] == pytest.approx(1.5)
    assert LipschitzResidual(branch).bound_forward(ONE).norm == pytest.approx(1.0)
    assert LipschitzResidual(branch, a=-1.0, c=2.0).bound_forward(ONE).norm == pytest.approx(3.0)


def test_the_concatenation_of_two_branches_has_the_constant_sqrt_2() -> None:
    joined = LipschitzConcat([Abs(), SpectralLinear(4, 3)])
    assert joined.bound_forward(ONE) == NormBound(pytest.approx(math.sqrt(2), rel=1e-5), (7,))
    g, sensitivities = joined.bound_backward(ONE, 3.0)
    assert g == pytest.approx(3 * math.sqrt(2), rel=1e-5)
    assert list(sensitivities.values()) == pytest.approx([3.0])


def test_a_weight_used_twice_has_twice_the_bound() -> None:
    shared = SpectralLinear(4, 4)
    twice = nn.Sequential(shared, Abs(), shared)
    assert list(propagation.backward(twice, ONE, 1.0)[1].values()) == pytest.approx([2.0], rel=1e-5)
    joined = LipschitzConcat([shared, shared])
    assert list(joined.bound_backward(ONE, 1.0)[1].values()) == pytest.approx([2.0])
    mixed = nn.Sequential(LipschitzResidual(shared), shared)
    assert list(propagation.backward(mixed, ONE, 1.0)[1].values()) == pytest.approx([1.5], rel=1e-5)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Scale(math.inf), "factor=inf"),
        (lambda: LipschitzResidual(Abs(), a=math.nan), "a=nan"),
        (lambda: LipschitzResidual(Abs(), c=math.inf), "c=inf"),
        (lambda: LipschitzResidual(SpectralLinear(4, 3)).bound_forward(ONE), r"turns \(4,\) into \(3,\)"),
        (lambda: LipschitzConcat([]), "at least one branch"),
        (lambda: LipschitzConcat([nn.Flatten(), Abs()]).bound_forward(NormBound(1.0, (2, 2))), "be concatenated"),
        (lambda: TokenMix(Abs()).bound_forward(ONE), r"\(tokens, channels\)"),
        (lambda: MixerBlock(0, 4), "tokens >= 1"),
        (lambda: MixerBlock(4, 0), "channels >= 1"),
        (lambda: MixerBlock(4, 6).bound_forward(NormBound(1.0, (6, 4))), r"takes examples of shape \(4, 6\)"),
        (lambda: MixerBlock(4, 6).bound_forward(NormBound(1.0, (6, 3, 3))), "6 maps of 4 positions"),
        (lambda: LayerCentering(0), "axis 0 holds the examples"),
        (lambda: LayerCentering((2, 0)), "axis 0 holds the examples"),
        (lambda: LayerCentering(()), "at least one axis"),
        (lambda: LayerCentering(-3)(torch.zeros(2, 3, 4)), "no axis -3"),
        (lambda: LayerCentering(3).bound_forward(NormBound(1.0, (3, 4))), "no axis 3"),
        (lambda: GroupSort2(0), "axis 0 holds the examples"),
        (lambda: GroupSort2().bound_forward(NormBound(1.0, (3, 4))), "is odd"),
        (lambda: GroupSort2()(torch.zeros(2, 3)), "is odd"),
        (lambda: GroupSort2(-2)(torch.zeros(2, 4)), "no axis -2"),
        (lambda: L2NormPool2d(3).bound_forward(NormBound(1.0, (3, 4, 2))), "3 x 3"),
        (lambda: L2NormPool2d(0), "k >= 1"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-22, 3e-23, 1e-8, 1e-6])
def test_gradients_of_window_norms_have_a_norm_of_at_most_one_near_zero(size) -> None:
    x = (size * torch.tensor([[[[1.0, 0.3], [-0.7, 0.2]]]])).requires_grad_()
    [gradient] = torch.autograd.grad(L2NormPool2d(2)(x).sum(), x)
    assert gradient.isfinite().all()
    assert float(gradient.double().norm()) <= 1 + 1e-6
    assert float(L2NormPool2d(2)(x).detach()) <= float(x.detach().double().norm()) + 1e-12
