"""Linear layers, biases, convolutions, inputs and joined branches: bounds by hand and by search, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lipschitz_ascent import dense_matrix, spectral_norm
from noisette.lipschitz import NormBound, Projection, propagation
from noisette.lipschitz.layers import windows
from noisette.lipschitz.projections import FrobeniusBall, Orthogonal, project
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
    NormCap,
    PatchConv2d,
    Patches,
    Scale,
    SpectralConv2d,
    SpectralLinear,
    SphereInput,
    TokenMix,
)

PROJECTIONS: list[Projection] = [Orthogonal(), FrobeniusBall()]
every_projection = pytest.mark.parametrize("projection", PROJECTIONS, ids=str)
SHAPES = [(6, 6), (10, 4), (4, 10), (1, 5), (5, 1)]


@every_projection
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_start_inside_their_set_with_a_certified_norm(projection, shape) -> None:
    layer = SpectralLinear(*shape, projection=projection)
    assert spectral_norm(layer.weight.detach()) <= layer.norm <= 1 + 1e-5
    assert layer.bound_forward(NormBound(2.0, shape[:1])) == NormBound(2.0 * layer.norm, shape[1:])


@every_projection
def test_a_smaller_norm_tightens_the_bounds_on_output_and_input_gradient(projection) -> None:
    layer = SpectralLinear(4, 4, projection=projection).double()
    with torch.no_grad():
        layer.weight.copy_(0.25 * torch.eye(4))
    layer.set_certified_norms(torch.tensor([0.25], dtype=torch.float64))
    assert layer.bound_forward(NormBound(2.0, (4,))).norm == 0.5
    g, sensitivities = layer.bound_backward(NormBound(2.0, (4,)), 3.0)
    assert g == 0.75
    assert dict(sensitivities) == {layer.weight: 6.0}  # the norm of the input does not change


def test_no_bound_vanishes_with_the_weights() -> None:
    layer = SpectralLinear(3, 3, projection=FrobeniusBall())
    with torch.no_grad():
        layer.weight.zero_()
    project(layer)
    assert layer.norm == 1e-3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_refused(bad) -> None:
    layer = SpectralLinear(3, 3)
    with pytest.raises(ValueError, match="no finite norm"):
        layer.set_certified_norms(torch.tensor([bad]))
    assert layer.norm < 1.1


def test_layers_of_equal_shape_are_projected_in_one_batch() -> None:
    class Counted:
        calls: list[tuple[int, ...]]

        def __init__(self) -> None:
            self.calls = []

        def __call__(self, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls.append(tuple(matrices.shape))
            return Orthogonal()(matrices)

    counted = Counted()
    model = nn.Sequential(*(SpectralLinear(4, 4, counted) for _ in range(3)), SpectralLinear(4, 2, counted))
    counted.calls.clear()
    project(model)
    assert sorted(counted.calls) == [(1, 2, 4), (3, 4, 4)]


@pytest.mark.parametrize(
    ("dim", "shape"), [(1, (3,)), (1, (3, 4)), (1, (3, 28, 28)), (-1, (50, 3)), (2, (50, 3)), (-1, (3,))], ids=str
)
def test_a_bias_is_shared_by_all_positions_and_increases_no_norm_by_more_than_its_own(dim, shape) -> None:
    layer = BallBias(3, radius=0.5, dim=dim).double()
    layer.load_state_dict({"bias": torch.tensor([3.0, 0.0, -4.0])})
    added = (layer(torch.zeros(1, *shape, dtype=torch.float64))[0]).detach()
    channels = added.movedim(0 if dim == 1 else -1, 0).reshape(3, -1)
    assert torch.equal(channels, channels[:, :1].expand_as(channels))
    assert float(added.norm()) == pytest.approx(0.5, rel=1e-6)
    reach = layer.bound_forward(NormBound(1.0, shape))
    assert reach.norm == pytest.approx(1.5, rel=1e-6)
    assert reach.shape == shape


F = nn.functional


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(1, 1, 0, 1), (3, 1, 1, 1), (5, 1, 2, 1), (3, 2, 1, 2), (2, 2, 0, 1), (2, 3, 5, 1), ((2, 4), (1, 2), 2, 2)],
    ids=str,
)
def test_overlap_and_output_size_are_those_of_a_convolution_of_ones(kernel, stride, padding, dilation) -> None:
    shape = windows(kernel, stride, padding, dilation)
    for size in ((7, 7), (8, 10)):
        image = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
        ones = torch.ones(1, 1, *shape.kernel_size, dtype=torch.float64)
        output = F.conv2d(image, ones, stride=stride, padding=padding, dilation=dilation)
        [looks] = torch.autograd.grad(output.sum(), image)
        assert shape.output(size) == tuple(output.shape[2:])
        assert shape.max_overlap(size) == max(1, int(looks.max()))


@pytest.mark.parametrize(("side", "too_long"), [(16, 1.0199), (32, 1.0151)])
def test_a_constant_kernel_is_1_lipschitz_with_the_largest_overlap_and_not_with_the_mean(side, too_long) -> None:
    layer = SpectralConv2d(1, 1, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.fill_(1 / 3)  # a row of nine elements has norm one
    norm = spectral_norm(dense_matrix(layer, (1, side, side)))
    assert norm <= 1
    mean = ((3 * side - 2) / side) ** 2  # mean number of windows per pixel
    assert norm * 3 / math.sqrt(mean) == pytest.approx(too_long, abs=1e-4)


@pytest.mark.parametrize(("side", "worst_case_search"), [(4, 2.3090), (8, 2.7660), (16, 2.9325)])
def test_alternating_ascent_over_images_and_gradients_does_not_exceed_the_bound(side, worst_case_search) -> None:
    x, back = torch.rand(2, 1, 1, side, side, dtype=torch.float64)
    kernel = torch.rand(1, 1, 3, 3, dtype=torch.float64)
    for _ in range(60):  # <G, K * x> is linear in each factor, so the best one, given the others, is its gradient
        for k in range(3):
            parts = [t.clone().requires_grad_() for t in (x, back, kernel)]
            value = (F.conv2d(parts[0], parts[2], padding=1) * parts[1]).sum()
            best = torch.autograd.grad(value, parts[k])[0]
            best = best / best.norm()
            x, back, kernel = (best if k == j else t for j, t in enumerate((x, back, kernel)))
    layer = SpectralConv2d(1, 1, 3, padding=1).double()
    [gradient] = torch.autograd.grad(layer(x), layer.weight, back)
    assert 3 * float(gradient.norm()) == pytest.approx(worst_case_search, abs=2e-4)
    [bound] = layer.bound_backward(NormBound(1.0, (1, side, side)), 1.0)[1].values()
    assert float(gradient.norm()) <= bound * (1 + 1e-9)


def test_patches_sphere_and_a_one_pixel_convolution_are_a_convolution_of_scaled_patches() -> None:
    model = nn.Sequential(Patches(7, stride=3), SphereInput(1.0), SpectralConv2d(49, 16, 1))
    x = torch.rand(4, 1, 28, 28)
    kernel = model[2].weight.view(16, 1, 7, 7)
    energy = model[0](x).flatten(1).norm(dim=1).view(4, 1, 1, 1)
    torch.testing.assert_close(model(x), F.conv2d(x, kernel, stride=3) / energy, rtol=1e-4, atol=1e-6)
    reach = NormBound(math.inf, (1, 28, 28))
    for part in model:
        reach = part.bound_forward(reach)
    assert reach.shape == (16, 8, 8)
    assert reach.norm == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({"kernel_size": 0}, "kernel_size >= 1"),
        ({"kernel_size": 3, "stride": 0}, "stride >= 1"),
        ({"kernel_size": 3, "dilation": (1, 0)}, "dilation >= 1"),
        ({"kernel_size": 3, "padding": -1}, "padding=-1"),
        ({"kernel_size": 3, "padding": "same"}, "whole pixels, got padding='same'"),
        ({"kernel_size": 3, "groups": 3}, "3 groups do not divide 4 input"),
        ({"kernel_size": 3, "groups": 0}, "groups >= 1"),
    ],
    ids=str,
)
def test_arguments_outside_of_their_domain_are_refused(figures, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        SpectralConv2d(4, 4, **figures)


LIMITS = [BoundedInput, SphereInput, NormCap]
every_limit = pytest.mark.parametrize("limit", LIMITS)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@every_limit
@every_precision
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30, 3e38])
def test_no_output_norm_exceeds_the_limit(limit, dtype, size) -> None:
    x = size * torch.randn(20, 2, 3, 5, dtype=torch.float64).clamp(-1, 1).to(dtype)
    found = limit(3.0)(x)
    assert found.dtype == dtype
    assert found.isfinite().all()
    rounding = 4 * torch.finfo(dtype).eps
    assert float(found.double().flatten(1).norm(dim=1).max()) <= 3 * (1 + rounding)


@pytest.mark.parametrize("limit", [BoundedInput, NormCap])
def test_an_example_within_the_ball_is_returned_bit_for_bit(limit) -> None:
    x = 0.1 * torch.randn(10, 6)
    assert torch.equal(limit(3.0)(x), x)


def test_the_sphere_scales_small_examples_up_and_keeps_zeros() -> None:
    x = torch.tensor([[3e-20, 4e-20], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(SphereInput(5.0)(x), torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]))


@every_limit
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_an_example_that_is_not_finite_becomes_zeros_and_affects_no_other(limit, bad) -> None:
    x = torch.randn(3, 4)
    expected = limit(1.0)(x)
    x[1, 2] = bad
    x.requires_grad_()
    found = limit(1.0)(x)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1].tolist() == [0.0] * 4
    [gradient] = torch.autograd.grad(found.sum(), x)
    assert gradient[[0, 2]].isfinite().all()


def test_input_layers_bound_the_norm_of_unbounded_inputs() -> None:
    anything = NormBound(math.inf, (3, 4))
    assert BoundedInput(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert SphereInput(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert NormCap(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert BoundedInput(2.0).bound_forward(NormBound(0.5, (3,))).norm == 0.5
    assert SphereInput(2.0).bound_forward(NormBound(0.5, (3,))).norm == 2.0
    assert BoundedInput(2.0).bound_backward(anything, 0.3) == (0.3, {})
    assert NormCap(2.0).bound_backward(anything, 0.3) == (0.3, {})


@every_limit
@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_outside_of_its_domain_is_refused(limit, radius) -> None:
    with pytest.raises(ValueError, match=r"expected (a finite )?(x0|cap)"):
        limit(radius)


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


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-22, 3e-23, 1e-8, 1e-6])
def test_gradients_of_window_norms_have_a_norm_of_at_most_one_near_zero(size) -> None:
    x = (size * torch.tensor([[[[1.0, 0.3], [-0.7, 0.2]]]])).requires_grad_()
    [gradient] = torch.autograd.grad(L2NormPool2d(2)(x).sum(), x)
    assert gradient.isfinite().all()
    assert float(gradient.double().norm()) <= 1 + 1e-6
    assert float(L2NormPool2d(2)(x).detach()) <= float(x.detach().double().norm()) + 1e-12


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SpectralLinear(0, 2), "in_features >= 1"),
        (lambda: SpectralLinear(2, 0), "out_features >= 1"),
        (lambda: SpectralLinear(3, 2).bound_forward(NormBound(1.0, (2, 4))), r"takes 3 features .* got shape \(2, 4\)"),
        (lambda: SpectralLinear(3, 2).bound_forward(NormBound(1.0, ())), "takes 3 features"),
        (lambda: BallBias(0, 1.0), "features >= 1"),
        (lambda: BallBias(2, 0.0), "radius > 0"),
        (lambda: BallBias(2, 1.0, dim=0), "axis 0 holds the examples"),
        (lambda: BallBias(2, 1.0).bound_forward(NormBound(1.0, (3,))), "expected 2 channels on axis 1"),
        (lambda: BallBias(2, 1.0)(torch.zeros(1, 3)), "expected 2 channels on axis 1"),
        (lambda: BallBias(2, 1.0, dim=2).bound_forward(NormBound(1.0, (2,))), "no axis 2"),
        (lambda: BallBias(2, 1.0, dim=-2).bound_forward(NormBound(1.0, (2,))), "no axis -2"),
        (lambda: SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (3, 8, 8))), "takes 2"),
        (lambda: SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (2, 8))), "takes 2"),
        (lambda: SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (2, 4, 8))), "smaller than a window"),
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
