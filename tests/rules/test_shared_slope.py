"""Slopes shared by all examples: norms, gradients and weighted sum, alone and added to other gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisette.core.forms import Dense, Outer, Total, compact, find_inner_product
from noisette.rules.conv import Geometry, KernelGradients
from noisette.rules.normalization import Channels, SharedSlope
from rule_oracle import check_form, double

B = 5
LAYERS = {
    "linear": nn.Linear(3, 4),
    "convolution": nn.Conv2d(4, 6, (2, 3), groups=2),
    "transposed": nn.ConvTranspose2d(4, 6, (2, 3)),
    "transposed, in groups": nn.ConvTranspose1d(4, 6, 3, groups=2),
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def channels_of(layer: nn.Module) -> tuple[Channels, Tensor]:
    """The layer's channels, and for each element of its weight the index of its channel, by autograd."""
    weight = layer.weight.detach().double().requires_grad_()
    groups = layer.groups if getattr(layer, "transposed", False) else None
    count = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    shape = (3,) if isinstance(layer, nn.Linear) else (4, *[6] * (weight.dim() - 2))
    output = torch.func.functional_call(layer, {"weight": weight, "bias": None}, (double(2, *shape),))
    owner = torch.full(weight.shape, -1)
    for c in range(count):
        [met] = torch.autograd.grad(output[:, c].square().sum(), weight, retain_graph=True)
        owner[met != 0] = c
    assert (owner >= 0).all()
    return Channels(weight.shape, groups), owner


@every_layer
def test_rows_hold_the_elements_of_one_output_channel_each(layer: nn.Module) -> None:
    channels, owner = channels_of(layer)
    rows = channels.rows(owner.unsqueeze(0))[0]
    assert torch.equal(rows, torch.arange(len(rows)).unsqueeze(1).expand_as(rows))
    weights = double(B, *channels.weight)
    assert torch.equal(channels.weights(channels.rows(weights)), weights)


@every_layer
def test_alone(layer: nn.Module) -> None:
    channels, owner = channels_of(layer)
    slope = double(*channels.weight)
    scales = double(B, int(owner.max()) + 1)
    form = SharedSlope(scales, channels.rows(slope.unsqueeze(0))[0], channels)
    check_form(form, scales[:, owner] * slope)


def two_slopes(channels: Channels, count: int) -> list[SharedSlope]:
    """One with a slope for each channel, one with a single slope for all channels, stored once."""
    numbers = channels.weight.numel() // count
    one = double(1, numbers).expand(count, numbers)
    return [SharedSlope(double(B, count), slope, channels) for slope in (double(count, numbers), one)]


def kernel(stride: int, groups: int) -> tuple[KernelGradients, Channels]:
    weight = torch.Size((6, 4 // groups, 3, 2))
    x = double(B, 4, 7, 6)
    dy = torch.randn_like(torch.conv2d(x, double(*weight), stride=stride, padding=1, groups=groups))
    return KernelGradients(x, dy, Geometry((3, 2), (stride,) * 2, (1, 1), (1, 1), groups), weight), Channels(weight)


DIRECT = {
    "dense": lambda: (Dense(double(B, 4, 3)), Channels(torch.Size((4, 3)))),
    "outer": lambda: (Outer(double(B, 1, 4), double(B, 1, 3)), Channels(torch.Size((4, 3)))),
    "sequences": lambda: (Outer(double(B, 5, 4), double(B, 5, 3)), Channels(torch.Size((4, 3)))),
    "kernel": lambda: kernel(2, 1),
    "kernel in groups": lambda: kernel(1, 2),
}


@pytest.mark.parametrize("made", DIRECT.values(), ids=DIRECT)
@pytest.mark.parametrize("form", [lambda total: total, compact], ids=["as it is", "compact"])
def test_added_to_another_gradient(made, form) -> None:
    direct, channels = made()
    shared = two_slopes(channels, channels.weight[0])
    total = Total((direct, *shared))
    assert all(find_inner_product(direct, part) for part in shared)  # nothing needs to be written out
    check_form(form(total), direct.explicit() + sum(part.explicit() for part in shared))


def test_added_to_the_gradient_of_a_transposed_convolution() -> None:
    channels = Channels(torch.Size((4, 3, 2)), groups=2)
    direct = KernelGradients(double(B, 6, 9), double(B, 4, 8), Geometry((2,), (1,), (0,), (1,), 2), channels.weight)
    shared = two_slopes(channels, 6)
    check_form(Total((direct, *shared)), direct.explicit() + sum(part.explicit() for part in shared))
