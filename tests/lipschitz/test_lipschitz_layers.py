"""Every layer of a Lipschitz network: its formula, its bounds against ascent, and per-example clipping with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_ascent import clip_singular_values, largest_stretch, worst_case_search
from noisette.lipschitz import Bounded, Constrained, NormBound
from noisette.lipschitz.propagation import is_bounded
from noisette.nn import lipschitz as lip

F = nn.functional
Formula = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


@dataclass(frozen=True)
class Layer:
    """A layer, the shape of an example, its formula, and the fraction of its bounds that ascent must reach."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    formula: Formula
    reached: float = 0.97  # least fraction of the bound on a parameter's gradient
    stretched: float = 0.93  # least fraction of the bound on the input's gradient


def sorted_pairs(x: Tensor) -> Tensor:
    """Neighbouring pairs along axis 1 in ascending order."""
    out = x.clone()
    for k in range(0, x.shape[1], 2):
        out[:, k] = torch.where(x[:, k] < x[:, k + 1], x[:, k], x[:, k + 1])
        out[:, k + 1] = torch.where(x[:, k] < x[:, k + 1], x[:, k + 1], x[:, k])
    return out


def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    hidden = sorted_pairs(torch.einsum("...n,hn->...h", x, first).transpose(1, -1)).transpose(1, -1)
    return torch.einsum("...h,nh->...n", hidden - hidden.mean(-1, keepdim=True), second)


def mixed(block: nn.Module, x: Tensor) -> Tensor:
    w = dict(block.named_parameters())
    x = mlp(x.mT, w["mix_tokens.module.0.weight"], w["mix_tokens.module.3.weight"]).mT
    return mlp(x, w["mix_channels.0.weight"], w["mix_channels.3.weight"])


def scaled_conv(looks: int, **figures: Any) -> Formula:
    return lambda layer, x: F.conv2d(x, layer.weight, **figures) / math.sqrt(looks)


LAYERS: dict[str, Layer] = {
    "linear": Layer(lambda: lip.SpectralLinear(5, 3), (5,), lambda m, x: x @ m.weight.T),
    "linear over positions": Layer(
        lambda: lip.SpectralLinear(5, 4), (3, 5), lambda m, x: torch.einsum("btn,mn->btm", x, m.weight)
    ),
    "conv": Layer(lambda: lip.SpectralConv2d(2, 4, 3, padding=1), (2, 8, 8), scaled_conv(9, padding=1), 0.5, 0.75),
    "conv of every figure": Layer(
        lambda: lip.SpectralConv2d(2, 3, 3, stride=2, padding=1),
        (2, 5, 4),
        scaled_conv(4, stride=2, padding=1),
        0.4,
        0.7,
    ),
    "conv of even windows": Layer(lambda: lip.SpectralConv2d(2, 3, 2), (2, 5, 5), scaled_conv(4), 0.6, 0.75),
    "conv of one pixel": Layer(lambda: lip.SpectralConv2d(4, 3, 1), (4, 3, 3), scaled_conv(1)),
    "patch conv": Layer(lambda: lip.PatchConv2d(2, 9, patch=2), (2, 6, 4), scaled_conv(1, stride=2)),
    "pair sort": Layer(lambda: lip.GroupSort2(), (6,), lambda m, x: sorted_pairs(x)),
    "pair sort of sequences": Layer(lambda: lip.GroupSort2(-1), (3, 4), lambda m, x: sorted_pairs(x.mT).mT),
    "centring of channels": Layer(
        lambda: lip.LayerCentering(1), (4, 3, 3), lambda m, x: x - x.sum(1, keepdim=True) / 4
    ),
    "centring of positions": Layer(
        lambda: lip.LayerCentering((2, 3)), (4, 3, 3), lambda m, x: x - x.sum((2, 3), keepdim=True) / 9
    ),
    "bounded input": Layer(
        lambda: lip.BoundedInput(1.0), (4,), lambda m, x: x * (1.0 / x.norm(dim=1, keepdim=True)).clamp(max=1)
    ),
    "scale": Layer(lambda: lip.Scale(-1.5), (4,), lambda m, x: x * -1.5),
    "token mix": Layer(
        lambda: lip.TokenMix(lip.SpectralLinear(5, 4)),
        (5, 3),
        lambda m, x: torch.einsum("btc,st->bsc", x, m.module.weight),
    ),
    "mixer of maps": Layer(
        lambda: lip.MixerBlock(4, 4),
        (4, 2, 2),
        lambda m, x: mixed(m, x.flatten(2).mT).mT.unflatten(2, (2, 2)),
        0.9,
        0.9,
    ),
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
training = {name: layer for name, layer in LAYERS.items() if list(layer.make().parameters())}
every_training_layer = pytest.mark.parametrize("layer", training.values(), ids=training)


def moved(layer: Layer) -> nn.Module:
    """The layer in double precision, with changed weights that are in their sets."""
    module = layer.make().double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
        restore(module)
    return module


def restore(module: nn.Module) -> None:
    """Bring the parameters back into their sets, and certify the largest norm of these."""
    for part in module.modules():
        if isinstance(part, Constrained):
            clip_singular_values(part.matrices())
            part.set_certified_norms(torch.ones(1))


def bounded(module: nn.Module) -> Bounded:
    assert is_bounded(module)
    return module


@every_layer
def test_a_layer_computes_its_formula_and_its_gradients_in_double_precision(layer) -> None:
    module = moved(layer)
    x = torch.randn(3, *layer.shape, dtype=torch.float64, requires_grad=True)
    tensors = [x, *module.parameters()]
    found, expected = module(x), layer.formula(module, x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    back = torch.randn_like(found)
    gradients = torch.autograd.grad(found, tensors, back)
    truth = torch.autograd.grad(expected, tensors, back)
    torch.testing.assert_close(gradients, truth, rtol=1e-11, atol=1e-12)
    alone = torch.cat([module(one) for one in x.split(1)])
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
    assert module(x[:0]).shape == (0, *alone.shape[1:])


@every_layer
def test_ascent_nearly_reaches_the_bound_on_the_input_gradient_and_nothing_exceeds_it(layer) -> None:
    module = moved(layer)
    bound, _ = bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)
    assert largest_stretch(module, layer.shape) <= bound * (1 + 1e-9)
    x, reach = torch.randn(200, *layer.shape).double(), bounded(module).bound_forward(NormBound(2.0, layer.shape))
    output = module(2 * x / x.flatten(1).norm(dim=1).view(-1, *[1] * len(layer.shape))).detach()
    assert output.shape[1:] == reach.shape
    assert float(output.flatten(1).norm(dim=1).max()) <= reach.norm * (1 + 1e-12)
    found = worst_case_search(module, layer.shape, restore=lambda: restore(module))
    assert layer.stretched * bound <= found <= bound * (1 + 1e-9)


@every_training_layer
def test_ascent_nearly_reaches_the_bound_on_a_parameter_gradient_and_does_not_exceed_it(layer) -> None:
    module = moved(layer)
    _, bounds = bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)
    assert set(bounds) == set(module.parameters())
    far, steep = bounded(module).bound_backward(NormBound(5.0, layer.shape), 3.0)
    assert far == pytest.approx(3 * bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)[0], rel=1e-12)
    assert all(steep[p] == pytest.approx(15 * bounds[p], rel=1e-12) for p in bounds)
    for p in module.parameters():
        found = worst_case_search(module, layer.shape, p, restore=lambda: restore(module))
        assert layer.reached * bounds[p] <= found <= bounds[p] * (1 + 1e-9)


@every_training_layer
def test_weights_are_feasible_from_the_start_and_after_a_state_is_loaded(layer) -> None:
    module, other = layer.make(), layer.make()
    with torch.no_grad():
        for p in other.parameters():
            p.copy_(5 * torch.randn_like(p))
    module.load_state_dict(other.state_dict())
    for fresh in (layer.make(), module):
        for part in fresh.modules():
            if isinstance(part, Constrained):
                norms = torch.linalg.matrix_norm(part.matrices().detach().double(), ord=2)
                assert float(norms.max()) <= part.norm <= 1 + 1e-5


def test_the_sphere_states_an_infinite_lipschitz_constant() -> None:
    assert lip.SphereInput(2.0).bound_backward(NormBound(1.0, (3,)), 0.1) == (math.inf, {})
