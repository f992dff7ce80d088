"""Standardised weights: the formula, and clipped gradients against single examples with every engine and captured."""

from __future__ import annotations

import copy
import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.clipping.registry import ENGINES
from noisette.clipping.rules import FlatClipping
from noisette.nn import weight_standardised
from noisette.run.per_example import PerExampleClip

_NORM = 4.2  # some gradients are longer, some shorter


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2, bias=False)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)).double()


def forward_by_hand(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network with the formula written out, filter by filter."""

    def of(weight: Tensor) -> Tensor:
        return torch.stack([(w - w.mean()) / (w.std(unbiased=False) * math.sqrt(w.numel())) for w in weight])

    x = F.conv2d(x, of(weights["0.parametrizations.weight.original"]), weights["0.bias"], stride=2)
    x = torch.tanh(F.group_norm(x, 2, weights["1.weight"], weights["1.bias"]))
    x = F.conv2d(x, of(weights["3.parametrizations.weight.original"]), groups=2)
    return F.linear(x.flatten(1), weights["5.weight"], weights["5.bias"])


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize(("engine", "capture"), [*product(sorted(ENGINES), ["eager"]), ("book-keeping", "graph")])
def test_clipped_gradients_are_those_of_the_original_weights(engine: str, capture: str) -> None:
    model = weight_standardised(network())
    x, y = torch.randn(6, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    torch.testing.assert_close(model(x), forward_by_hand(weights, x))
    right = {name: torch.zeros_like(p) for name, p in weights.items()}
    for row, label in zip(x, y, strict=True):
        value = F.cross_entropy(forward_by_hand(weights, row.unsqueeze(0)), label.unsqueeze(0))
        grads = torch.autograd.grad(value, list(weights.values()))
        factor = min(1.0, _NORM / torch.cat([g.flatten() for g in grads]).norm().item())
        for total, grad in zip(right.values(), grads, strict=True):
            total += factor * grad
    clip = PerExampleClip(
        model,
        clipping=FlatClipping(_NORM),
        engine=ENGINES[engine].resolve()(),
        capture=capture,  # type: ignore[arg-type]
    )
    for _ in range(4 if capture == "graph" else 1):
        clip.accumulate(loss, x, y)
        (found,) = clip.pop_sums()
    clip.close()
    for name, grad in zip(clip.parameters, found.grads, strict=True):
        torch.testing.assert_close(grad, right[name], rtol=1e-5, atol=1e-7)


def test_weights_do_not_depend_on_the_scale_of_the_original_ones() -> None:
    model = weight_standardised(network())
    before = model[0].weight.clone()
    with torch.no_grad():
        model[0].parametrizations.weight.original.mul_(7.0).add_(0.1)
    torch.testing.assert_close(model[0].weight, before)
    assert before.flatten(1).norm(dim=1).tolist() == pytest.approx([1.0] * 4)
    torch.testing.assert_close(copy.deepcopy(model)[0].weight, model[0].weight)


def test_equal_weights_become_zero_and_have_a_finite_gradient() -> None:
    layer = weight_standardised(nn.Conv2d(1, 1, 3))
    nn.init.constant_(layer.parametrizations.weight.original, 0.5)
    assert not layer.weight.any()
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()


def test_what_has_no_weights_to_standardise_is_refused() -> None:
    with pytest.raises(ValueError, match="no convolution that is trained"):
        weight_standardised(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no convolution that is trained"):
        weight_standardised(network().requires_grad_(False))
    with pytest.raises(ValueError, match="the weights of 0, 3 are derived"):
        weight_standardised(weight_standardised(network()))
