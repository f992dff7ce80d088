"""Statistics of public data that depend on a layer's weight: values and gradients, whose slopes all examples share."""

import pytest
import torch
from torch import Tensor, nn

from noisette.core.forms import DERIVATIONS, Dense, DerivedWeight, Examples, Outer, Total, compact, find_inner_product
from noisette.rules.conv import Geometry, KernelGradients
from noisette.rules.normalization import (
    Channels,
    SharedSlope,
    Statistic,
    normalise_channels,
    public_mean,
    public_variance,
)
from rule_oracle import TOLERANCE, by_autograd, check_form, double, rule_of

B, C = 4, 3


def statistics_of(weight: Tensor, bias: Tensor, public: Tensor) -> tuple[Statistic, Statistic]:
    outputs = public @ weight.t() + bias
    mean, centred = outputs.mean(0), outputs - outputs.mean(0)
    channels, mean_slope = Channels(weight.shape), public.mean(0).expand_as(weight)
    variance_slope = 2 * centred.t() @ (public - public.mean(0)) / len(public)
    return Statistic(mean, mean_slope, channels), Statistic(centred.square().mean(0), variance_slope, channels)


def test_gradients_of_the_operands_are_those_of_autograd() -> None:
    weight, bias = double(C, 5).requires_grad_(), double(C).requires_grad_()
    at_mean, at_variance = statistics_of(weight.detach(), bias.detach(), double(7, 5))
    for operation, args in ((public_mean, (weight, bias, at_mean)), (public_variance, (weight, at_variance))):
        arriving = double(B, C)
        weight_of = DerivedWeight(operation(*args), (), operation, args, {})
        reached = DERIVATIONS[operation](weight_of, Dense(arriving))
        assert [id(of) for of, _ in reached] == [id(arg) for arg in args[:-1]]
        for of, form in reached:
            output = operation(*args)
            rows = [torch.autograd.grad(output, of, row, retain_graph=True)[0] for row in arriving]
            torch.testing.assert_close(form.explicit(), torch.stack(rows), **TOLERANCE)


@pytest.mark.parametrize("shape", [(B, C), (B, C, 5), (B, C, 3, 2), (2 * B, C, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_normalization(shape: tuple[int, ...], affine: bool) -> None:
    x, dy = double(*shape), double(*shape)
    weights = [double(C), double(C).abs() + 0.1, *([double(C), double(C)] if affine else [])]
    truth = torch.nn.functional.batch_norm(x, weights[0], weights[1], *weights[2:], eps=1e-3)
    torch.testing.assert_close(normalise_channels(x, weights, 1e-3), truth, **TOLERANCE)
    forms = rule_of(normalise_channels, "weights")(Examples(B), dy, input=x, weights=weights, eps=1e-3)
    assert len(forms) == len(weights)
    for k, form in enumerate(forms):

        def by(value: Tensor, k: int = k) -> Tensor:
            return normalise_channels(x, [value if j == k else w for j, w in enumerate(weights)], 1e-3)

        torch.testing.assert_close(form.explicit(), by_autograd(by, weights[k], dy, B), **TOLERANCE)


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
    slope, scales = double(*channels.weight), double(B, int(owner.max()) + 1)
    check_form(SharedSlope(scales, channels.rows(slope.unsqueeze(0))[0], channels), scales[:, owner] * slope)


def two_slopes(channels: Channels, count: int) -> list[SharedSlope]:
    numbers = channels.weight.numel() // count
    return [SharedSlope(double(B, count), double(count, numbers), channels) for _ in range(2)]


def kernel(stride: int, groups: int) -> tuple[KernelGradients, Channels]:
    weight, x = torch.Size((6, 4 // groups, 3, 2)), double(B, 4, 7, 6)
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


def test_statistics_have_the_value_and_the_gradient_of_those_of_the_public_outputs() -> None:
    weight, bias, public = double(C, 5).requires_grad_(), double(C).requires_grad_(), double(7, 5)
    at_mean, at_variance = statistics_of(weight.detach(), bias.detach(), public)
    outputs = public @ weight.t() + bias
    pairs = [
        (public_mean(weight, bias, at_mean), outputs.mean(0)),
        (public_variance(weight, at_variance), outputs.var(0, correction=0)),
    ]
    for found, truth in pairs:
        torch.testing.assert_close(found, truth, **TOLERANCE)
        arriving = double(C)
        for of in (weight, bias):
            one, other = (
                torch.autograd.grad(t, of, arriving, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
                for t in (found, truth)
            )
            torch.testing.assert_close(one, other, **TOLERANCE)
