"""Bounds through modules against dense sampling, and projections onto sets of matrices against singular values."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import spectral_norm
from noisette import PrivacyError
from noisette.lipschitz import NormBound, Projection, Sensitivities, propagation
from noisette.lipschitz.projections import FrobeniusBall, Orthogonal, frobenius_bound, residual_bound


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
    assert (g, found) == (0.25, {second.factor: 2.0 * 4.0, first.factor: 0.5 * 8.0})


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


RESHAPING = [(nn.Flatten(), (2, 4, 4)), (nn.MaxPool2d(2), (1, 5, 5)), (nn.AvgPool2d((1, 2)), (2, 3, 4))]


@pytest.mark.parametrize(("module", "shape"), RESHAPING, ids=str)
def test_the_jacobian_norm_of_a_module_that_reshapes_is_its_bound(module, shape) -> None:
    x = torch.randn(1, *shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(module, x).reshape(-1, x.numel())  # pyright: ignore
    bound, _ = propagation.backward(module, NormBound(1.0, shape), 1.0)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(bound)
    reach = propagation.forward(module, NormBound(float(x.norm()), shape))
    assert reach.shape == tuple(module(x).shape[1:])
    assert float(module(x).norm()) <= reach.norm + 1e-12


POOLS = [nn.MaxPool2d(3, 2), *(nn.AvgPool2d(2, **how) for how in ({"padding": 1}, {"ceil_mode": True}))]


@pytest.mark.parametrize("module", [*POOLS, nn.AvgPool2d(2, divisor_override=1)], ids=str)
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


def test_frozen_modules_and_subclasses_have_infinite_bounds_and_parametrized_weights_are_refused() -> None:
    class Doubling(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    frozen, bound = nn.Linear(3, 5).requires_grad_(False), NormBound(1.0, (3,))
    assert propagation.forward(frozen, bound) == NormBound(math.inf, (5,))
    assert propagation.backward(frozen, bound, 1.0) == (math.inf, {})
    assert propagation.forward(Doubling(), bound).norm == math.inf
    with pytest.raises(PrivacyError, match="parametrized weight"):
        propagation.forward(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), bound)


SHAPES = [(1, 9), (5, 5), (40, 12), (12, 40)]
BOUNDS = [residual_bound, frobenius_bound]
every_bound = pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_bound
@every_shape
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_no_spectral_norm_exceeds_its_bound(bound, shape, scale) -> None:
    matrices = scale * torch.stack([random(*shape, seed=s) for s in range(4)])
    for matrix, norm in zip(matrices, bound(matrices), strict=True):
        assert spectral_norm(matrix) <= float(norm) * (1 + 1e-15)


@every_bound
def test_bounds_of_orthogonal_matrices_cover_rounding(bound) -> None:
    for seed in range(20):
        q = torch.linalg.qr(random(30, 11, seed=seed))[0]
        for matrix in (q, q.float().double(), q.mT.contiguous()):
            assert spectral_norm(matrix) <= float(bound(matrix[None]))


def test_the_residual_bound_of_matrices_that_are_orthogonal_up_to_rounding_is_one() -> None:
    assert 1 <= float(residual_bound(torch.linalg.qr(random(30, 11))[0][None])) < 1 + 1e-11
    # (1 + 0.1)^2 - 1 = 0.21 on the diagonal, in four places: a residual of 0.42.
    scaled = 1.1 * torch.eye(4, dtype=torch.float64)
    assert float(residual_bound(scaled[None])) == pytest.approx(math.sqrt(1.42), rel=1e-12)


PROJECTIONS: list[Projection] = [Orthogonal(), FrobeniusBall(), FrobeniusBall(0.3)]
every_projection = pytest.mark.parametrize("projection", PROJECTIONS, ids=str)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def nearly_deficient() -> Tensor:
    u, _, vh = torch.linalg.svd(random(20, 9), full_matrices=False)
    return (u * torch.logspace(0, -9, 9, dtype=torch.float64)) @ vh


MATRICES = {
    "random": random(40, 17),
    "wide": random(6, 30),
    "square": random(12, 12),
    "rank-deficient": random(20, 3) @ random(3, 9),
    "nearly rank-deficient": nearly_deficient(),
    "zero": torch.zeros(7, 5, dtype=torch.float64),
    "with a zero column": random(7, 5) * torch.tensor([1, 1, 0, 1, 1]),
    "huge": 1e6 * random(9, 6),
    "beyond the range of squares": 1e30 * random(9, 6),
    "tiny": 1e-6 * random(9, 6),
    "below the range of squares": 1e-30 * random(9, 6),
    "one row": random(1, 11),
    "one column": random(11, 1),
    "one number": random(1, 1),
    "just above": torch.linalg.qr(random(15, 15))[0] * 1.7,
}
every_matrix = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)


@every_projection
@every_precision
@every_matrix
def test_a_projected_matrix_is_in_its_set_and_its_certified_norm_is_an_upper_bound(projection, dtype, matrix) -> None:
    [found], [norm] = projection(matrix.to(dtype)[None])
    truth = spectral_norm(found)
    assert (found.dtype, norm.dtype) == (dtype, torch.float64)
    assert truth <= float(norm)
    assert truth <= getattr(projection, "radius", 1.0) * (1 + 1e-6)
    twice, again = projection(found[None])
    torch.testing.assert_close(twice[0], found, rtol=0, atol=1e-6)
    torch.testing.assert_close(again[0], norm, rtol=0, atol=1e-5)


@every_precision
@every_matrix
def test_all_singular_values_of_an_orthogonal_matrix_are_one(dtype, matrix) -> None:
    found, norms = Orthogonal()(matrix.to(dtype)[None])
    away = (torch.linalg.svdvals(found[0].double()) - 1).abs()
    assert float(away.max()) <= (3e-6 if dtype == torch.float32 else 1e-9)
    assert float(norms) < 1 + 1e-5


def test_orthogonal_matrices_are_returned_bit_for_bit() -> None:
    found, _ = Orthogonal()(random(3, 20, 8).float())
    again, _ = Orthogonal()(found)
    assert torch.equal(again, found)


def test_frobenius_ball_scales_matrices_outside_of_it_to_its_radius() -> None:
    found, norms = FrobeniusBall(2.5)(torch.tensor([[[3.0, 4.0]], [[0.6, 0.8]]]))
    torch.testing.assert_close(found, torch.tensor([[[1.5, 2.0]], [[0.6, 0.8]]]))
    torch.testing.assert_close(norms, torch.tensor([2.5, 1.0], dtype=torch.float64), rtol=0, atol=1e-6)


@every_projection
def test_a_stack_is_projected_as_its_members_are(projection) -> None:
    stack = torch.stack([random(9, 6), torch.zeros(9, 6, dtype=torch.float64), 1e-6 * random(9, 6), 3 * random(9, 6)])
    found, norms = projection(stack)
    for k, matrix in enumerate(stack):
        alone, norm = projection(matrix[None])
        torch.testing.assert_close(found[k], alone[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(norms[k], norm[0], rtol=0, atol=1e-9)


@every_projection
def test_weights_that_are_not_finite_are_refused(projection) -> None:
    matrices = torch.ones(2, 3, 4)
    matrices[1, 0, 2] = math.inf
    with pytest.raises(ValueError, match="1 of 24 weights to project are not finite"):
        projection(matrices)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_outside_of_its_domain_is_refused(radius) -> None:
    with pytest.raises(ValueError, match="radius"):
        FrobeniusBall(radius)
