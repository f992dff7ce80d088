"""Normalization by statistics that depend on a layer's weight: values, gradients, and rules against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisette.core.forms import DERIVATIONS, Dense, DerivedWeight, Examples, find_rule
from noisette.rules.normalization import Channels, Statistic, normalise_channels, public_mean, public_variance
from rule_oracle import TOLERANCE, by_autograd, double

B, C = 4, 3


def statistics_of(weight: Tensor, bias: Tensor, public: Tensor) -> tuple[Statistic, Statistic]:
    """Mean and variance of a linear layer's outputs over a public batch, and their derivatives in closed form."""
    outputs = public @ weight.t() + bias
    mean, centred = outputs.mean(0), outputs - outputs.mean(0)
    channels = Channels(weight.shape)
    mean_slope = public.mean(0).expand_as(weight)
    variance_slope = 2 * centred.t() @ (public - public.mean(0)) / len(public)
    return Statistic(mean, mean_slope, channels), Statistic(centred.square().mean(0), variance_slope, channels)


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


def test_gradients_of_the_operands_are_those_of_autograd() -> None:
    weight, bias = double(C, 5).requires_grad_(), double(C).requires_grad_()
    at_mean, at_variance = statistics_of(weight.detach(), bias.detach(), double(7, 5))
    for operation, args in ((public_mean, (weight, bias, at_mean)), (public_variance, (weight, at_variance))):
        arriving = double(B, C)
        weight_of = DerivedWeight(operation(*args), (), operation, args, {})
        reached = DERIVATIONS[operation](weight_of, Dense(arriving))
        assert reached is not None
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
    rule = find_rule(normalise_channels, "weights")
    assert rule is not None
    forms = rule(Examples(B), dy, input=x, weights=weights, eps=1e-3)
    assert len(forms) == len(weights)
    for k, form in enumerate(forms):

        def by(value: Tensor, k: int = k) -> Tensor:
            return normalise_channels(x, [value if j == k else w for j, w in enumerate(weights)], 1e-3)

        torch.testing.assert_close(form.explicit(), by_autograd(by, weights[k], dy, B), **TOLERANCE)
