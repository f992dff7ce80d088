"""Constrained linear layers: initial weights, certified norms, and refused arguments."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lipschitz_ascent import clip_singular_values, spectral_norm, worst_case_search
from noisette.lipschitz import NormBound, Projection
from noisette.lipschitz.projections import FrobeniusBall, Orthogonal, project
from noisette.nn.lipschitz import GroupSort2, SpectralLinear

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


def test_ascent_attains_the_bounds_of_three_layers_and_exceeds_none() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        SpectralLinear(4, 4), GroupSort2(), SpectralLinear(4, 4), GroupSort2(), SpectralLinear(4, 4)
    ).double()
    layers = [copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model)]
    for k, net in enumerate(layers):

        def restore(net: nn.Module = net) -> None:
            for part in net.modules():
                if isinstance(part, SpectralLinear):
                    clip_singular_values(part.matrices())

        found = worst_case_search(net, (4,), net[2 * k].weight, restore=restore, steps=200, rate=0.05)
        assert 0.999 <= found <= 1 + 1e-9


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SpectralLinear(0, 2), "in_features >= 1"),
        (lambda: SpectralLinear(2, 0), "out_features >= 1"),
        (lambda: SpectralLinear(3, 2).bound_forward(NormBound(1.0, (2, 4))), r"takes 3 features .* got shape \(2, 4\)"),
        (lambda: SpectralLinear(3, 2).bound_forward(NormBound(1.0, ())), "takes 3 features"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
