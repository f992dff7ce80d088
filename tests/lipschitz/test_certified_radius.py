"""Certified radii against values worked out by hand, random trials, and gradient attacks."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from noisette.lipschitz import NormBound, Sensitivities
from noisette.lipschitz.certified_radius import certified_accuracy, certify
from noisette.lipschitz.projections import project
from noisette.nn import Standardise
from noisette.nn import lipschitz as lip

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def linear(matrix: list[list[float]]) -> lip.SpectralLinear:
    """A linear layer in double precision with these weights, which must be orthogonal."""
    weight = torch.tensor(matrix, dtype=torch.float64)
    layer = lip.SpectralLinear(weight.shape[1], weight.shape[0]).double()
    layer.load_state_dict({"weight": weight})
    torch.testing.assert_close(layer.weight.data.abs(), weight.abs(), rtol=0, atol=1e-12)
    return layer


def same(outputs: int) -> lip.SpectralLinear:
    return linear(torch.eye(outputs).tolist())


class ClippedGradient(nn.Identity):
    """States that gradients leave it with a norm of at most 1e-9."""

    def bound_forward(self, x: NormBound) -> NormBound:
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return min(g, 1e-9), {}


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_difference_of_the_two_largest_scores_gives_the_radius() -> None:
    model = nn.Sequential(lip.BoundedInput(10.0), same(3))
    torch.testing.assert_close(
        certify(model, double([2.0, 0.5, -1.0], [-1.0, 0.5, 0.5])), double([1.5 / math.sqrt(2), 0.0])[0], **EXACT
    )


@pytest.mark.parametrize("shape", [(2, 1), (2,)])
def test_the_radius_of_a_single_score_is_its_distance_from_zero(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(lip.BoundedInput(10.0), linear([[0.6, 0.8]]), *([] if len(shape) == 2 else [nn.Flatten(0)]))
    x = double([3.0, 4.0], [1.0, -1.0])
    assert model(x).shape == shape
    torch.testing.assert_close(certify(model, x), double([5.0, 0.2])[0], **EXACT)
    assert certified_accuracy(model, x, torch.tensor([1, 0]), [0.0, 0.19, 0.21, 4.9, 5.1]) == [1, 1, 0.5, 0.5, 0]
    assert certified_accuracy(model, x, torch.tensor([1, 1]), [0.0, 0.21]) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("part", "stretch"),
    [
        (lip.Scale(-2.5), 2.5),
        (Standardise(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.25, 1.0])), 4.0),
        (nn.Sigmoid(), 0.25),
        (nn.Dropout(0.5), 1.0),
        (ClippedGradient(), 1.0),
        (nn.Sequential(lip.Scale(2.0), nn.Sequential(), nn.Sequential(lip.Scale(3.0))), 6.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_radii_are_divided_by_the_lipschitz_constant_of_a_layer(part: nn.Module, stretch: float) -> None:
    x = double([2.0, 0.5, -1.0], [0.3, 0.4, 0.5])
    model = nn.Sequential(lip.BoundedInput(10.0), part, same(3)).double()
    first, second = model.eval()(x).sort(dim=1, descending=True).values[:, :2].unbind(1)
    torch.testing.assert_close(certify(model.train(), x), (first - second) / math.sqrt(2) / stretch, **EXACT)


def test_radii_far_outside_of_the_ball_are_larger() -> None:
    slope = 0.1 / 3
    x = 55 * double([math.sqrt(1 - slope**2), slope])
    model = nn.Sequential(lip.BoundedInput(3.0), linear([[0.0, 1.0]]))
    assert float(model(x).detach()) == pytest.approx(0.1)
    assert float(certify(model, x)) == pytest.approx(1.8032787, abs=5e-8)
    assert float(certify(nn.Sequential(lip.Scale(2.0), model), x / 2)) == pytest.approx(1.8032787 / 2, abs=5e-8)
    near = nn.Sequential(lip.BoundedInput(3.0), linear([[0.0, 1.0]]))  # radii extend to the surface of the ball
    for norm, expected in ((2.0, 1.0), (4.0, 1.5), (5.0, 2.0), (6.0, 2.4)):
        assert float(certify(near, norm * double([math.sqrt(0.75), 0.5]))) == pytest.approx(expected)
    capped = nn.Sequential(lip.BoundedInput(99.0), same(2), lip.Scale(2.0), lip.BoundedInput(3.0), linear([[0.0, 1.0]]))
    assert float(certify(capped, x / 2)) == pytest.approx(1.8032787 / 2, abs=5e-8)


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", [lip.BoundedInput, lip.SphereInput])
def test_no_input_within_the_radius_has_a_larger_distance_behind_the_ball(kind, size) -> None:
    """The predicted class is the sign of one coordinate."""
    trials, axes = 5_000, 3
    x = torch.randn(trials, axes, dtype=torch.float64) * size * torch.rand(trials, 1).exp2().pow(6) / 8
    model = nn.Sequential(kind(size), linear([[1.0, 0.0, 0.0]]))
    radii, behind = certify(model, x), model(x).abs().squeeze(1)
    assert (radii > 0).all()
    tangent = torch.linalg.cross(x, torch.randn_like(x))
    for way in (torch.randn_like(x), tangent, -x + 0.3 * tangent, -x, x):
        moved = x + way / way.norm(dim=1, keepdim=True) * radii.unsqueeze(1) * torch.rand(trials, 1).pow(0.1)
        assert (model[0](moved) - model[0](x)).norm(dim=1).sub(behind).max() <= 1e-12 * size
    # No radius exceeds the distance to the nearest input of the other class, and far outside of the ball it is close.
    across = x[:, 0].abs()
    assert (radii <= across * (1 + 1e-12)).all()
    assert (radii / across)[(x.norm(dim=1) > 5 * size) & (behind < 0.02 * size)].min() > 0.98


def test_inputs_that_are_not_finite_or_zero_have_radius_zero() -> None:
    ball, sphere = (nn.Sequential(kind(3.0), same(2)) for kind in (lip.BoundedInput, lip.SphereInput))
    odd = double([math.nan, 1.0], [math.inf, 1.0], [1e100, 1.0], [1e-25, 0.0], [0.0, 0.0], [1.0, 0.0])
    assert certify(ball, odd)[[0, 1, 2, 4]].tolist() == [0, 0, 0, 0]
    assert certify(sphere, odd)[:5].tolist() == [0, 0, 0, 0, 0]
    assert certify(sphere, odd)[5] > 0
    assert certify(ball, odd)[5] > 0
    assert certify(nn.Identity(), odd)[[0, 1]].tolist() == [0, 0]


def test_features_without_a_lipschitz_constant_are_refused_with_the_way_out() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x**2

    model = nn.Sequential(Square(), nn.Softmax(1), lip.SphereInput(1.0), same(4))
    x = torch.rand(3, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"0 \(Square\), 1 \(Softmax\).*certify\(model\[k:\], model\[:k\]\(inputs\)\)"):
        certify(model, x)
    assert (certify(model[2:], model[:2](x)) > 0).all()
    with pytest.raises(ValueError, match=r"1\.0 \(Linear\)"):
        certify(nn.Sequential(lip.BoundedInput(1.0), nn.Sequential(nn.Linear(4, 2))), x.float())
    with pytest.raises(ValueError, match="constant: Linear"):
        certify(nn.Linear(4, 2), x.float())


def test_weights_outside_of_their_set_are_refused_and_projected_ones_are_not() -> None:
    model = nn.Sequential(lip.BoundedInput(1.0), lip.SpectralLinear(4, 4), lip.GroupSort2(), lip.SpectralLinear(4, 3))
    x = torch.randn(5, 4)
    certify(model, x)
    with torch.no_grad():
        model[3].weight.mul_(3.0)
    with pytest.raises(ValueError, match=r"outside of their set.*: 3 \(SpectralLinear\)\. Lipschitz"):
        certify(model, x)
    project(model)
    certify(model, x)


def test_certify_does_not_change_the_model() -> None:
    model = nn.Sequential(
        lip.BoundedInput(1.0), lip.SpectralLinear(4, 4), nn.Dropout(0.5), lip.SpectralLinear(4, 3)
    ).train()
    model[1].weight.data.mul_(1 + 1e-7)
    before = copy.deepcopy(model.state_dict())
    certify(model, torch.randn(5, 4))
    assert all(part.training for part in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.images).unsqueeze(1) / 16 - 0.5, torch.tensor(found.target)


def trained(model: nn.Sequential, images: Tensor, targets: Tensor, steps: int = 100) -> nn.Sequential:
    model, loss = model.double(), lip.TauCrossEntropy(tau=10.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        rows = torch.arange(step * 100, step * 100 + 100) % 1500
        optimizer.zero_grad()
        loss(model(images[rows]), targets[rows]).mean().backward()
        optimizer.step()
        project(model)
    return model


def attacked(model: nn.Module, x: Tensor, classes: Tensor, radii: Tensor, steps: int = 60) -> Tensor:
    radii = radii.view(-1, *[1] * (x.dim() - 1))
    length = lambda z: z.flatten(1).norm(dim=1).view(radii.shape)  # noqa: E731
    moved = torch.randn_like(x)
    moved, least = moved / length(moved) * radii, torch.full((len(x),), math.inf, dtype=x.dtype)
    for _ in range(steps):
        moved.requires_grad_()
        scores = model(x + moved)
        own = scores.gather(1, classes.unsqueeze(1)).squeeze(1)
        lead = own - scores.scatter(1, classes.unsqueeze(1), -math.inf).amax(1)
        least = torch.minimum(least, lead.detach())
        [gradient] = torch.autograd.grad(lead.sum(), [moved])
        moved = moved.detach() - 0.2 * radii * gradient / (length(gradient) + 1e-30)
        moved = moved * (radii / length(moved)).clamp(max=1.0)
    return least


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(
            *(Standardise(-0.2, 0.4), lip.BoundedInput(6.0), lip.SpectralConv2d(1, 8, 3, padding=1), lip.GroupSort2()),
            *(nn.MaxPool2d(2), lip.MixerBlock(tokens=16, channels=8), lip.BoundedInput(2.0)),
            *(nn.Flatten(), lip.SpectralLinear(128, 10)),
        ),
        lambda: nn.Sequential(
            *(lip.SphereInput(1.0), nn.Flatten(), lip.SpectralLinear(64, 64), lip.GroupSort2()),
            lip.SpectralLinear(64, 10),
        ),
    ],
    ids=["convolution and mixer", "sphere"],
)
def test_no_attack_within_the_radius_changes_the_class(make: Callable[[], nn.Sequential]) -> None:
    images, targets = digits()
    model = trained(make(), images, targets).requires_grad_(False)
    images, targets = images[1500:1600], targets[1500:1600]
    radii, classes = certify(model, images), model(images).argmax(1)
    assert (classes == targets).double().mean() > 0.8
    assert radii.median() > 0.05
    assert attacked(model, images, classes, radii).min() >= -1e-9
    # The attack is effective: at four times the radii it succeeds.
    assert (attacked(model, images, classes, 4 * radii) < 0).double().mean() > 0.5
    accuracies = certified_accuracy(model, images, targets, [0.0, 0.1, 0.3, 100.0])
    assert accuracies == sorted(accuracies, reverse=True)
    assert (accuracies[0], accuracies[-1]) == ((classes == targets).double().mean(), 0)


def test_a_layer_used_twice_divides_radii_twice() -> None:
    twice = nn.Sigmoid()
    first, second = double([2.0, -1.0])[0].sigmoid().sigmoid()
    radius = certify(nn.Sequential(twice, twice, same(2)), double([2.0, -1.0]))
    torch.testing.assert_close(radius, ((first - second) * 16 / math.sqrt(2)).unsqueeze(0), **EXACT)
