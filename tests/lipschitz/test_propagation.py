"""Propagation of bounds through test modules, and the bounds of torch's modules against dense sampling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from noisette import PrivacyError
from noisette.lipschitz import NormBound, Sensitivities, propagation


class Times(nn.Module):
    """The input times a trainable number, whose gradient for one example is g . x, at most |g| |x|."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(abs(self.factor.item()) * x.norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return abs(self.factor.item()) * g, {self.factor: g * x.norm}


def test_bounds_propagate_forward_and_backward() -> None:
    first, second = Times(0.5), Times(0.25)
    model = nn.Sequential(nn.Flatten(), nn.Sequential(first, nn.ReLU()), second)
    assert propagation.forward(model, NormBound(8.0, (2, 3))) == NormBound(1.0, (6,))
    g, found = propagation.backward(model, NormBound(8.0, (2, 3)), 2.0)
    assert g == 0.25
    assert found == {second.factor: 2.0 * 4.0, first.factor: 0.5 * 8.0}


def test_a_module_in_two_places_counts_twice() -> None:
    twice = Times(0.5)
    _, found = propagation.backward(nn.Sequential(twice, twice), NormBound(1.0, (3,)), 1.0)
    assert found == {twice.factor: 0.5 * 1.0 + 1.0 * 0.5}


ELEMENTWISE = [
    nn.Identity(), nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(1.5), nn.ELU(1.0), nn.ELU(2.0), nn.Tanh(), nn.Sigmoid(),
    nn.Softplus(), nn.Softplus(beta=2.0), nn.GELU(), nn.SiLU(), nn.GELU("tanh"), nn.ELU(-2.0), nn.LeakyReLU(-3.0),
    nn.Softplus(beta=-2.0), nn.Softplus(beta=0.5, threshold=30.0), nn.Dropout(0.5), nn.Dropout(0.0),
]  # fmt: skip


@pytest.mark.parametrize("module", ELEMENTWISE, ids=str)
def test_no_derivative_and_no_output_of_an_elementwise_module_exceeds_its_bound(module: nn.Module) -> None:
    x = torch.linspace(-9, 9, 40_001, dtype=torch.float64, requires_grad=True)
    y = module(x)
    [slopes] = torch.autograd.grad(y.sum(), [x])
    bound, _ = propagation.backward(module, NormBound(1.0, (1,)), 1.0)
    assert float(slopes.abs().max()) <= bound + 1e-12
    assert float(slopes.abs().max()) >= 0.98 * bound  # a bound that is far too large is a defect too
    for reach in (1e-3, 1.0, 9.0):
        within = y.detach()[x.abs() <= reach].abs().max()
        assert float(within) <= propagation.forward(module, NormBound(reach, (1,))).norm + 1e-12


RESHAPING = [
    (nn.Flatten(), (2, 4, 4)),
    (nn.MaxPool2d(2), (1, 4, 4)),
    (nn.MaxPool2d(2), (1, 5, 5)),
    (nn.AvgPool2d(2), (1, 4, 4)),
    (nn.AvgPool2d((1, 2)), (2, 3, 4)),
]


@pytest.mark.parametrize(("module", "shape"), RESHAPING, ids=str)
def test_the_jacobian_norm_of_a_module_that_reshapes_is_its_bound(module, shape) -> None:
    x = torch.randn(1, *shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(module, x).reshape(-1, x.numel())  # pyright: ignore
    bound, _ = propagation.backward(module, NormBound(1.0, shape), 1.0)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(bound)
    reach = propagation.forward(module, NormBound(float(x.norm()), shape))
    assert reach.shape == tuple(module(x).shape[1:])
    assert float(module(x).norm()) <= reach.norm + 1e-12


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool2d(3, 2),
        nn.AvgPool2d(2, padding=1),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=1),
    ],
    ids=str,
)
def test_overlapping_windows_or_windows_beyond_the_image_are_refused(module: nn.Module) -> None:
    with pytest.raises(PrivacyError, match="overlap or extend beyond the image"):
        propagation.forward(module, NormBound(1.0, (1, 8, 8)))


@pytest.mark.parametrize(
    ("module", "instead"),
    [
        (nn.Linear(3, 3), "SpectralLinear"),
        (nn.Conv2d(1, 1, 3), "SpectralConv2d"),
        (nn.LayerNorm(3), "LayerCentering"),
        (nn.LSTM(3, 3), "bound_forward"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_trainable_module_without_a_bound_is_refused_by_name(module: nn.Module, instead: str) -> None:
    with pytest.raises(PrivacyError, match=f"{type(module).__name__}.*{instead}"):
        propagation.backward(module, NormBound(1.0, (3,)), 1.0)


def test_a_frozen_module_without_a_bound_has_infinite_bounds() -> None:
    frozen = nn.Linear(3, 5).requires_grad_(False)
    assert propagation.forward(frozen, NormBound(1.0, (3,))) == NormBound(math.inf, (5,))
    assert propagation.backward(frozen, NormBound(1.0, (3,)), 1.0) == (math.inf, {})


def test_a_subclass_does_not_inherit_registered_bounds() -> None:
    class Doubling(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert propagation.forward(Doubling(), NormBound(1.0, (3,))).norm == math.inf


def test_a_parametrized_weight_is_refused() -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    with pytest.raises(PrivacyError, match="parametrized weight"):
        propagation.forward(model, NormBound(1.0, (3,)))
