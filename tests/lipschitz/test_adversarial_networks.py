"""Gradient ascent over inputs, labels and weights of whole networks: no gradient may exceed its bound.

Random samples reach about 0.7 of a bound, so they cannot tell a correct bound from one that is a third too small.
Ascent reaches the bound, and with each planted fault it exceeds it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import NETWORKS, X0, dense
from noisette import LipschitzBound
from noisette.lipschitz import NormBound, propagation
from noisette.lipschitz.projections import project
from noisette.nn.lipschitz import BallBias, BoundedInput, SpectralConv2d, SpectralLinear, TauCrossEntropy

F = nn.functional
TAU = 20.0


def ratio(bound: LipschitzBound, x: Tensor, label: int) -> dict[str, Tensor]:
    """The ratio of one example's gradient norm to its bound, for each parameter, as a differentiable function."""
    params = list(bound.parameters.values())
    loss = F.cross_entropy(TAU * bound.model(x), torch.tensor([label])) / TAU
    grads = torch.autograd.grad(loss, params, create_graph=True)
    limits = bound.sensitivities().values()
    return {name: g.norm() / limit for name, g, limit in zip(bound.parameters, grads, limits, strict=True)}


def largest_ratio(model: nn.Module, shape: tuple[int, ...], target: str, steps: int = 250, classes: int = 3) -> float:
    """The largest ratio found for one parameter, over the input, the label and all weights in their sets."""
    bound = LipschitzBound(model, loss=TauCrossEntropy(TAU), input_shape=shape, slack=0.0)
    x = torch.randn(1, *shape, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.Adam([x, *bound.parameters.values()], lr=0.05, maximize=True)
    best, best_label = 0.0, 0
    for step in range(steps):
        label = step * classes // steps if step < steps // 2 else best_label
        reached = ratio(bound, x, label)[target]
        if float(reached.detach()) > best:
            best, best_label = float(reached.detach()), label
        ascent.zero_grad()
        reached.backward()
        ascent.step()
        with torch.no_grad():
            x.mul_(X0 / x.norm())
        bound.after_step()
    bound.close()
    return best


every_network = pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)


@every_network
def test_no_search_exceeds_a_bound(make, shape, request) -> None:
    torch.manual_seed(1)
    for target, _ in make().named_parameters():
        assert largest_ratio(make().double(), shape, target, steps=40) <= 1 + 1e-9


@pytest.mark.slow
@every_network
def test_no_longer_search_exceeds_a_bound(make, shape) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        for target, _ in make().named_parameters():
            assert largest_ratio(make().double(), shape, target, steps=400) <= 1 + 1e-9


def test_the_bounds_of_a_dense_network_are_reached() -> None:
    for target, _ in dense().named_parameters():
        reached = []
        for seed in range(2):
            torch.manual_seed(seed)
            reached.append(largest_ratio(dense().double(), (6,), target, steps=200))
        assert max(reached) >= 0.99


@every_network
def test_activations_stay_within_their_bounds_and_layers_within_their_lipschitz_constants(make, shape) -> None:
    model = make().double()
    project(model)
    reaches, outputs = [NormBound(torch.inf, shape)], []
    for part in model:
        reaches.append(propagation.forward(part, reaches[-1]))
        part.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
    x = torch.randn(64, *shape, dtype=torch.float64)
    x[::2] *= 1e6
    model(x)
    for reach, output in zip(reaches[1:], outputs, strict=True):
        assert float(output.flatten(1).norm(dim=1).max()) <= reach.norm * (1 + 1e-9)
        assert tuple(output.shape[1:]) == reach.shape
    rest = model[1:]
    inside = outputs[0]
    moved = inside + 1e-4 * torch.randn_like(inside)
    slope, _ = propagation.backward(rest, reaches[1], 1.0)
    grown = (rest(moved) - rest(inside)).norm(dim=1)
    assert (grown <= slope * (moved - inside).flatten(1).norm(dim=1) * (1 + 1e-9)).all()


def unscaled(self: BallBias, x: Tensor) -> Tensor:
    """A bias on maps that is not divided by the root of the number of positions."""
    return x + self.bias.view(-1, *[1] * (x.dim() - 2))


def kernel(self: SpectralConv2d, x: Tensor) -> Tensor:
    """A convolution with the weight itself, without the division by the overlap of windows."""
    return F.conv2d(x, self.weight, padding=1)


def on_maps(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(BoundedInput(X0), layer, nn.Flatten(), SpectralLinear(64, 3))


FAULTS = {
    "bias without its positions": (BallBias, unscaled, lambda: BallBias(1, 0.3), "1.bias"),
    "kernel not scaled": (SpectralConv2d, kernel, lambda: SpectralConv2d(1, 1, 3, padding=1), "1.weight"),
}


@pytest.mark.parametrize(("kind", "forward", "make", "target"), FAULTS.values(), ids=FAULTS)
def test_the_search_finds_a_planted_fault(kind, forward, make, target, monkeypatch) -> None:
    monkeypatch.setattr(kind, "forward", forward)
    torch.manual_seed(0)
    assert largest_ratio(on_maps(make()).double(), (1, 8, 8), target, steps=100) > 1.001


def test_the_search_finds_a_loss_that_understates_its_constant(monkeypatch) -> None:
    monkeypatch.setattr(TauCrossEntropy, "lipschitz", lambda self, logit_bound=None: 1.0)
    torch.manual_seed(0)
    assert largest_ratio(dense().double(), (6,), "5.weight", steps=100) > 1.1
